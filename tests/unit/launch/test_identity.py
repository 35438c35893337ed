"""What is taken for ours: never a number alone, whatever was given again to somebody else."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.launch.identity import Claim, Here, Mark, Seen, Verdict, guards, ours

HERE = Here("boot", "pid:[1] since 5")
CLAIM = Claim(HERE, guard_pid=10, guard_started=100, pid=11, started=110)
EARLIER = CLAIM._replace(here=Here("old", HERE.namespace))
ELSEWHERE = CLAIM._replace(here=Here("boot", "pid:[1] since 9"))
UNSAID = CLAIM._replace(here=Here("boot", ""))
WAITING = CLAIM._replace(pid=None, started=None)


@dataclass(frozen=True)
class Case:
    seen: Seen
    verdict: Verdict
    claim: Claim | None = CLAIM


def seen(pid: int = 20, started: int = 120, session: int = 20, leader: int | None = 120, mark: Mark = "none") -> Seen:
    return Seen(pid, started, session, leader, mark)


CASES = {
    "the unit's process": Case(seen(11, 110, 11, 110), Verdict.RECORDED),
    "the guard": Case(seen(10, 100, 10, 100), Verdict.RECORDED),
    "its pid was given to another": Case(seen(11, 500, 11, 500), Verdict.STRANGER),
    "the guard's pid was given to another": Case(seen(10, 500, 10, 500), Verdict.STRANGER),
    "a child in the session": Case(seen(12, 115, 11, 110), Verdict.MEMBER),
    "a child of the process that got the pid": Case(seen(12, 505, 11, 500), Verdict.STRANGER),
    "in the session, its leader gone": Case(seen(12, 115, 11, None), Verdict.STRANGER),
    "in the session, older than who opened it": Case(seen(9, 90, 11, 110), Verdict.STRANGER),
    "in the session, its leader gone, marked": Case(seen(12, 115, 11, None, "this"), Verdict.MARKED),
    "another boot": Case(seen(11, 110, 11, 110), Verdict.ELSEWHERE, EARLIER),
    "another namespace": Case(seen(11, 110, 11, 110), Verdict.ELSEWHERE, ELSEWHERE),
    "a record without a namespace": Case(seen(11, 110, 11, 110), Verdict.ELSEWHERE, UNSAID),
    "no record": Case(seen(11, 110, 11, 110), Verdict.ELSEWHERE, None),
    "no record, marked": Case(seen(mark="this"), Verdict.MARKED, None),
    "another unit's, though recorded": Case(seen(11, 110, 11, 110, "other"), Verdict.OTHERS),
    "between restarts, a leader of a session 0": Case(seen(12, 1, 0, None), Verdict.STRANGER, WAITING),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_way_of_being_ours_or_not(case: Case) -> None:
    assert ours(case.claim, HERE, case.seen) is case.verdict


small = st.integers(1, 4)
claims = st.builds(
    lambda here, a, b, c, d: Claim(here, a, b, c, d),
    st.sampled_from([HERE, Here("boot", "other"), Here("old", HERE.namespace), Here("boot", "")]),
    small, small, st.none() | small, st.none() | small,
)  # fmt: skip
sights = st.builds(Seen, small, small, small, st.none() | small, st.sampled_from(["this", "other", "none"]))


@given(st.none() | claims, sights)
def test_nothing_unmarked_is_ours_but_by_a_start_time_of_this_boot_and_namespace(
    claim: Claim | None, seen: Seen
) -> None:
    if ours(claim, HERE, seen).ours and seen.mark != "this":
        assert claim is not None
        assert claim.here == HERE
        assert seen.mark == "none"
        itself = (seen.pid, seen.started) in ((claim.pid, claim.started), (claim.guard_pid, claim.guard_started))
        leader = (seen.session, seen.leader) == (claim.pid, claim.started)
        assert itself or leader


@given(claims, sights)
def test_a_guard_is_never_known_by_its_pid_alone(claim: Claim, seen: Seen) -> None:
    assert not guards(claim, HERE, seen) or seen.started == claim.guard_started
    assert not guards(claim._replace(here=Here("old", HERE.namespace)), HERE, seen)
    assert not guards(claim._replace(here=Here("boot", "another")), HERE, seen)
    assert not guards(claim._replace(here=Here("boot", "")), HERE, seen._replace(mark="none"))
    assert not guards(claim, HERE, None)
