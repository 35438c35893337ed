"""The search of `test_machines.py` finds what it is there for: each of the faults that sessions once had.

Each is planted into one rule of a machine; what the search then says must be about that fault. (That a living rank is
never displaced at the registry is searched, and planted, in `test_registry_orders.py`.)
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from pdctl_transfer.session import checks
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.machine.lending import Lending
from pdctl_transfer.session.machine.seeking import Seeking
from pdctl_transfer.session.machine.sender import Sender
from pdctl_transfer.session.machine.settling import Settling
from pdctl_transfer.session.machine.working import Working
from tests.unit.transfer_session.machines import Model, Rank
from tests.unit.transfer_session.test_machines import STEPS, Sessions

BUDGET = settings(
    max_examples=100,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
Plant = Callable[[pytest.MonkeyPatch], None]


def to_the_brink(model: Model, shape: Cut) -> Rank:
    """Writes are under way, one has failed and may go on; the prefill rank whose it is."""
    model.open(shape, (*model.side("prefill"), *model.side("decode")), 1)
    for _ in range(8):
        model.link_well()
        model.talk_well()
        for job in [job for rank in model.side("prefill") for job in rank.jobs.values() if not job.begun]:
            model.begin(job)
    writes = [job for rank in model.side("prefill") for job in rank.jobs.values() if job.writes]
    model.finish(writes[0], "late")
    return writes[0].rank


WRITES = st.sampled_from([Cut(True, False, 0, True), Cut(False, True, 0, False), Cut(False, False, 3, True)])


class Brink(Sessions):
    """The search begins where most can go wrong: something may be under way of a room that has failed, or will not."""

    @initialize(shape=WRITES, aborted=st.booleans())
    def start(self, shape: Cut, aborted: bool) -> None:
        prefill = to_the_brink(self.model, shape)
        if aborted:
            self.model.abort(prefill, next(iter(prefill.handles)))


class Closed(Sessions):
    """The same, and the engine whose write it is closes."""

    @initialize(shape=WRITES)
    def start(self, shape: Cut) -> None:
        self.model.close(to_the_brink(self.model, shape))


class Refused(Sessions):
    """A pair is refused while the room waits for links to all ranks."""

    @initialize()
    def start(self) -> None:
        model = self.model
        model.open(Cut(True, False, 0, True), (*model.side("prefill"), *model.side("decode")), 1)
        for rank in model.side("decode"):
            model.route(rank, next(iter(rank.finding)))
        model.causes[1] += 1
        model.refuse(next(iter(model.links)))


class CutOff(Sessions):
    """The search begins with a chunk that landed, and a connection that took the word of it with it."""

    @initialize()
    def a_word_is_lost(self) -> None:
        model = self.model
        model.open(Cut(False, False, 3, True), (*model.side("prefill"), *model.side("decode")), 1)
        while not (
            chunks := [j for r in model.side("prefill") for j in r.jobs.values() if isinstance(j.work, do.Staged)]
        ):
            model.link_well()
            model.talk_well()
            for job in [job for rank in model.side("prefill") for job in rank.jobs.values() if not job.writes]:
                model.begin(job)
                model.finish(job, "well")
        model.begin(chunks[0])
        model.finish(chunks[0], "well")
        for key in [key for key, link in model.links.items() if link.up]:
            model.cut(key)


class CutShort(Sessions):
    """The search begins with an installment that is under way, and a connection that took the word of it with it."""

    @initialize()
    def a_word_is_lost(self) -> None:
        model = self.model
        model.open(Cut(False, False, 3, True), (*model.side("prefill"), *model.side("decode")), 1, parts=2)
        while not any(leg.cuts for rank in model.side("prefill") for leg in rank.machine.legs.values()):
            model.link_well()
            model.talk_well()
        for key in [key for key, link in model.links.items() if link.up]:
            model.cut(key)


def proof_goes_with_the_connection(patch: pytest.MonkeyPatch) -> None:
    """What belongs to a write was kept on the link, and a new link knew nothing of it."""
    right = Sender._again

    def again(self: Sender, leg: Any) -> None:
        leg.may_write = False
        right(self, leg)

    patch.setattr(Sender, "_again", again)


def closing_settles(patch: pytest.MonkeyPatch) -> None:
    """An engine that closed was taken for one that writes no more."""
    right = Settling.settle

    def settle(self: Any, leg: Any) -> None:
        leg.may_write = leg.may_write and self._closing is None
        right(self, leg)

    patch.setattr(Settling, "settle", settle)


def scratch_stays_with_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Of a leg whose peer was lost the scratch was forgotten."""
    right = Settling.give_back

    def give_back(self: Any, leg: Any) -> None:
        if leg.peer in self.lost:
            leg.held = []
        right(self, leg)

    patch.setattr(Settling, "give_back", give_back)


def absence_is_agreement(patch: pytest.MonkeyPatch) -> None:
    """A kind that both sides forgot was confirmed without a byte moved."""
    patch.setattr(checks, "_ids_fault", lambda component, regions, ids, unique, whole: "")


def an_installment_is_told_once(patch: pytest.MonkeyPatch) -> None:
    """After a cut decode does not hear of those before: it can lend nothing for their chunks."""
    patch.setattr(Sender, "_more_again", lambda self, leg: [])


def a_refusal_is_told_to_who_is_linked(patch: pytest.MonkeyPatch) -> None:
    """Ranks that were not asked yet never heard why they were not."""
    patch.setattr(Seeking, "_decline", lambda self, request, peer: None)


def a_job_that_raises_is_never_answered(patch: pytest.MonkeyPatch) -> None:
    """Its leg kept the job for ever."""
    patch.setattr(Working, "_broke", lambda self, event: None)


def what_was_lent_stays_away(patch: pytest.MonkeyPatch) -> None:
    """Slots that were lent over a link that broke never came back."""
    patch.setattr(Lending, "give_back", lambda self, request: None)


def a_chunk_that_landed_is_said_once(patch: pytest.MonkeyPatch) -> None:
    """A connection that broke took the word of a chunk with it; the request, and its slots, waited for ever."""
    right = Sender._tell

    def tell(self: Sender, leg: Any) -> None:
        items, leg.items = leg.items, {}
        right(self, leg)
        leg.items = items

    patch.setattr(Sender, "_tell", tell)


FOUND: dict[Plant, tuple[type[Sessions], str]] = {
    proof_goes_with_the_connection: (Brink, ""),
    closing_settles: (Closed, "may still write"),
    scratch_stays_with_the_dead: (Brink, "slots lost"),
    absence_is_agreement: (Sessions, "never moved"),
    a_refusal_is_told_to_who_is_linked: (Refused, "ended"),
    a_job_that_raises_is_never_answered: (Sessions, ""),
    what_was_lent_stays_away: (Brink, "slots lost"),
    an_installment_is_told_once: (CutShort, "nothing happened to it"),
    a_chunk_that_landed_is_said_once: (CutOff, "nothing happened to it"),
}
"""From where each is searched for, and a word of what must be said of it."""


@pytest.mark.parametrize("begins", [Brink, Closed, Refused, CutOff, CutShort])
def test_the_search_finds_nothing_where_nothing_is_planted(begins: type[Sessions]) -> None:
    run_state_machine_as_test(begins, settings=BUDGET)


@pytest.mark.parametrize("plant", FOUND, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(FOUND[plant][0], settings=BUDGET)
    assert FOUND[plant][1] in str(caught.value)
