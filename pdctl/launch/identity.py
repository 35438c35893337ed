"""Whether a process is ours: a pure decision over what a record says and what the process table shows.

A pid alone says nothing. It is given to another process as soon as its owner is gone; after a restart of a container,
whose boot id is the host's, small numbers come again at once. So a number counts only together with the start time,
the boot and the pid namespace that it was written down with; everything else must carry the unit's mark.
"""

from enum import Enum
from typing import Literal, NamedTuple

Mark = Literal["this", "other", "none"]
"""The mark that a process carries: this unit's, another unit's, or none that can be read."""


class Here(NamedTuple):
    """Where pids and start times can be compared: one boot, one pid namespace."""

    boot: str
    namespace: str


class Claim(NamedTuple):
    """What a record says of a unit: its process, its guard, and where those numbers hold.

    `started` and `guard_started` in clock ticks since the boot. `namespace` is empty in records of earlier versions.
    """

    here: Here
    guard_pid: int
    guard_started: int
    pid: int | None
    started: int | None


class Seen(NamedTuple):
    """A process as it is now; `leader` is the start time of its session's leader, None where that one is gone."""

    pid: int
    started: int
    session: int
    leader: int | None
    mark: Mark


class Verdict(Enum):
    """Why a process is ours, or why not."""

    MARKED = "it carries the unit's mark"
    RECORDED = "its pid and start time are the recorded ones"
    MEMBER = "it belongs to the session of the recorded process"
    OTHERS = "it carries another unit's mark"
    ELSEWHERE = "the record is of another boot or pid namespace, or there is none"
    STRANGER = "nothing ties it to the unit"

    @property
    def ours(self) -> bool:
        """Whether it may be signalled."""
        return self in (Verdict.MARKED, Verdict.RECORDED, Verdict.MEMBER)


def ours(claim: Claim | None, here: Here, seen: Seen) -> Verdict:
    """Whether a process is the unit's: by its mark, by the record, or by a session whose leader is the recorded one.

    Members of a session count only while its leader lives: once it is gone nothing tells it from a later session of the
    same number. Nor can a member be older than the process that opened the session.
    """
    if seen.mark == "this":
        return Verdict.MARKED
    if seen.mark == "other":
        return Verdict.OTHERS
    if claim is None or claim.here != here:
        return Verdict.ELSEWHERE
    if (seen.pid, seen.started) in ((claim.pid, claim.started), (claim.guard_pid, claim.guard_started)):
        return Verdict.RECORDED
    leads = (seen.session, seen.leader) == (claim.pid, claim.started)
    if leads and claim.started is not None and seen.started >= claim.started:
        return Verdict.MEMBER
    return Verdict.STRANGER


def guards(claim: Claim, here: Here, seen: Seen | None) -> bool:
    """Whether `seen` is the guard that the record names. Records without a namespace count only with the mark."""
    if seen is None or (seen.pid, seen.started) != (claim.guard_pid, claim.guard_started) or seen.mark == "other":
        return False
    return claim.here == here or (claim.here == Here(here.boot, "") and seen.mark == "this")
