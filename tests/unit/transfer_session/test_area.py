"""Slots are lent once, fairly, side by side where that is possible, and come back; the memory is one for all ranks."""

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.fabric.base import Deadline
from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank
from pdctl_transfer.session.bytes import pool
from pdctl_transfer.session.bytes.area import Area, Purpose, shared_area
from pdctl_transfer.session.bytes.copier import NoCopier, NumpyCopier
from pdctl_transfer.session.bytes.torch_copier import TorchCopier
from tests.unit.transfer_session.world import FAST, Buffers, manifest


class Pinned(MemoryFabric):
    """Counts what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.pinned: dict[int, int] = {}

    def register(self, base: int, nbytes: int, where: str = "cpu") -> None:
        self.pinned[base] = nbytes

    def deregister(self, base: int) -> None:
        del self.pinned[base]


def area(slots: int, slot_bytes: int = 64, purpose: Purpose = "scratch", fabric: Any = None) -> Area:
    return shared_area(fabric or Pinned(), NumpyCopier(()), slots * slot_bytes, slot_bytes, purpose)


class Lending(RuleBasedStateMachine):
    """Borrowers wish, give back, and change their minds; a model says who is served."""

    def __init__(self) -> None:
        super().__init__()
        self.area = area(5)
        self.held: dict[int, str] = {}
        self.wishes: list[tuple[int, str]] = []
        self.told: list[tuple[int, str, int]] = []
        self.number = 0

    def teardown(self) -> None:
        self.area.close()

    def served(self) -> None:
        """What the model says happens when slots are free, compared with what did."""
        told, self.told = self.told, []
        for number, borrower, slot in told:
            fewest = Counter(self.held.values())
            first = min(self.wishes, key=lambda wish: fewest[wish[1]])
            assert (number, borrower) == first, "not the one that holds fewest and wished first"
            assert slot not in self.held, "lent twice"
            self.wishes.remove(first)
            self.held[slot] = borrower

    @rule(
        borrower=st.sampled_from("abc"),
        siblings=st.integers(1, 3),
        near=st.none() | st.integers(-2, 6),
        data=st.data(),
    )
    def wish(self, borrower: str, siblings: int, near: int | None, data: st.DataObject) -> None:
        self.number += 1
        number = self.number
        self.wishes.append((number, borrower))
        place = data.draw(st.integers(0, siblings - 1))
        got = lambda slot: self.told.append((number, borrower, slot))  # noqa: E731
        self.area.wish(borrower, got, siblings=siblings, place=place, near=near)
        self.served()

    @rule(borrower=st.sampled_from("abc"))
    def unwish(self, borrower: str) -> None:
        mine = [wish for wish in self.wishes if wish[1] == borrower]
        assert self.area.unwish(borrower) == len(mine)
        self.wishes = [wish for wish in self.wishes if wish[1] != borrower]

    @rule(borrower=st.sampled_from("abc"))
    def take(self, borrower: str) -> None:
        slot = self.area.take(borrower)
        kept_for_others = borrower in self.held.values() and self.area.slots - len(self.held) <= self.area.reserve
        assert (slot is None) == (len(self.held) == 5 or kept_for_others)
        if slot is not None:
            assert slot not in self.held
            self.held[slot] = borrower

    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        if self.held:
            slots = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
            for slot in slots:
                del self.held[slot]
            self.area.give(*slots)
            self.served()

    @rule(data=st.data())
    def stick(self, data: st.DataObject) -> None:
        if self.held:
            self.area.stuck(data.draw(st.sampled_from(sorted(self.held))))

    @rule(slots=st.lists(st.integers(-1, 6), min_size=1, max_size=3))
    def wrong(self, slots: list[int]) -> None:
        """What is not lent, or twice in one call, is no slot to give back; nothing of it is taken."""
        if len(set(slots)) < len(slots) or any(slot not in self.held for slot in slots):
            with pytest.raises(ValueError, match="given back"):
                self.area.give(*slots)
            assert self.told == []

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.area.free == 5 - len(self.held)
        assert not self.wishes or self.area.free == 0, "a slot lies idle while somebody wishes"


Lending.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLending = Lending.TestCase


def test_many_threads() -> None:
    """Waiting, wishing, changing one's mind: each slot has one holder at a time, and in the end all are free."""
    lent = area(3)
    holders = [0] * 3
    faults: list[str] = []
    moved = Counter[str]()

    def use(slot: int) -> None:
        holders[slot] += 1
        if holders[slot] != 1:
            faults.append(f"slot {slot} has {holders[slot]} holders")
        time.sleep(0.0002)
        holders[slot] -= 1
        lent.give(slot)

    def waits(number: int) -> None:
        for _ in range(60):
            use(lent.wait(Deadline(30), number))
            moved["waited"] += 1

    def wishes(number: int) -> None:
        for turn in range(60):
            answer: list[int] = []
            came = threading.Event()

            def got(slot: int, answer: list[int] = answer, came: threading.Event = came) -> None:
                answer.append(slot)
                came.set()

            lent.wish((number, turn), got)
            if turn % 3 == 0 and lent.unwish((number, turn)):
                moved["withdrawn"] += 1
                continue
            assert came.wait(30)
            use(answer[0])
            moved["wished"] += 1

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4) for work in (waits, wishes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    assert moved["waited"] == 240
    assert moved["wished"] + moved["withdrawn"] == 240
    assert lent.free == 3


def test_slots_in_a_row_while_there_are() -> None:
    lent = area(8)

    def one(**how: Any) -> int | None:
        got: list[int] = []
        lent.wish("all", got.append, **how)
        return got[0] if got else None

    first = one(siblings=4, place=1)
    assert first is not None
    assert one(near=first + 1) == first + 1
    second = one(siblings=4, place=0)
    assert second == (4 if first < 4 else 0)
    assert one(near=second) not in {None, first, first + 1, second}
    left = [one(siblings=4, place=3) for _ in range(5)]
    assert left[-1] is None
    assert lent.free == 0


def test_what_comes_back_together_is_lent_in_a_row_again() -> None:
    """Four sources wished while nothing was free: slots that come back one by one would be scattered among them."""
    lent = area(4)
    row = [lent.take(n) for n in range(4)]
    got: dict[int, int] = {}
    for place in (2, 0, 3, 1):
        lent.wish(place, lambda slot, place=place: got.__setitem__(place, slot), siblings=4, place=place)
    random.Random(1).shuffle(row)
    lent.give(*row)  # type: ignore[arg-type]
    assert sorted(got.values()) == [0, 1, 2, 3]
    assert got[2] == 2


@pytest.mark.code("PD4041")
def test_who_waits_is_told_why_none_comes() -> None:
    lent = area(2)
    slots = [lent.wait(Deadline(1)) for _ in range(2)]
    start = time.monotonic()
    with pytest.raises(TransferError, match="none of 2 slots came free") as caught:
        lent.wait(Deadline(0.05))
    assert caught.value.code == "PD4041"
    assert time.monotonic() - start >= 0.05
    lent.give(slots[0])
    assert lent.wait(Deadline(1)) == slots[0]


@pytest.mark.code("PD4041")
def test_nobody_waits_for_slots_that_are_stuck() -> None:
    """Not who came before the last one stuck, nor who comes later; and one that comes back after all serves again."""
    lent = area(2)
    slots = [lent.wait(Deadline(1)) for _ in range(2)]
    lent.stuck(slots[0])
    causes: list[str] = []

    def waits() -> None:
        try:
            lent.wait(Deadline(60))
        except TransferError as error:
            causes.append(error.message)

    waiting = threading.Thread(target=waits)
    waiting.start()
    waiting.join(0.05)
    assert causes == []
    assert not lent.exhausted
    lent.stuck(slots[1])
    waiting.join(10)
    waits()
    assert len(causes) == 2
    assert all("all 2 slots are held by writes that may never end" in cause for cause in causes)
    assert lent.exhausted
    lent.give(slots[1])
    assert lent.wait(Deadline(60)) == slots[1]
    with pytest.raises(ValueError, match="not lent"):
        area(2).stuck(0)


@pytest.mark.code("PD4041")
def test_who_waits_gives_up_when_told() -> None:
    lent, deadline = area(1), Deadline(60)
    lent.take()
    causes: list[str] = []

    def waits() -> None:
        try:
            lent.wait(deadline)
        except TransferError as error:
            causes.append(error.code)

    waiting = threading.Thread(target=waits)
    waiting.start()
    deadline.cancel()
    lent.wake()
    waiting.join(10)
    assert causes == ["PD4041"]
    assert lent.free == 0


def test_one_area_for_all_ranks_of_a_fabric() -> None:
    """And none of it is pinned before it is used, or after the last rank has closed."""
    fabric, other = Pinned(), Pinned()
    first, second = area(4, fabric=fabric), area(4, fabric=fabric)
    different = [area(3, fabric=fabric), area(4, 32, fabric=fabric), area(4, fabric=other)]
    assert fabric.pinned == {}
    slot = first.wait(Deadline(1))
    assert list(fabric.pinned.values()) == [256]
    assert second.free == 3
    assert second.base(slot) == first.base(slot)
    assert [one.free for one in different] == [3, 4, 4]
    first.give(slot)
    first.close()
    first.close()
    assert second.free == 4
    assert len(fabric.pinned) == 1
    second.close()
    assert fabric.pinned == {}
    again = area(4, fabric=fabric)
    assert again.free == 4


def test_memory_lies_where_the_copier_says() -> None:
    fabric = Pinned()
    numpy, torch = NumpyCopier(()), TorchCopier(())
    areas = [shared_area(fabric, copier, 256, 64, "staging") for copier in (numpy, torch)]
    assert len(fabric.pinned) == 1, "both lie on the CPU"
    elsewhere = TorchCopier(())
    elsewhere.where = "cuda:0"
    assert shared_area(fabric, elsewhere, 256, 64, "scratch").free == 4
    assert areas[0].buffer(1).base == areas[1].buffer(1).base == areas[0].base(0) + 64


def test_memory_that_a_write_may_still_use_is_never_given_to_anybody_else() -> None:
    """The last rank closes while a slot is lent: it is kept until that comes back, and is no longer registered."""
    fabric = Pinned()
    lent = area(2, fabric=fabric)
    slot = lent.wait(Deadline(1))
    memory = lent.buffer(slot)
    lent.close()
    assert fabric.pinned == {}
    assert lent._pool in pool._kept
    assert lent.buffer(slot) == memory
    assert area(2, fabric=fabric).buffer(slot).base != memory.base
    lent.give(slot)
    assert lent._pool not in pool._kept


@pytest.mark.code("PD4014")
def test_memory_that_there_is_not() -> None:
    """Staging says so at once, scratch to whoever needs it first, and to the next."""
    for _ in range(2):
        with pytest.raises(FabricError, match="no memory for") as caught:
            area(8, 1 << 57, "staging")
        assert caught.value.code == "PD4014"
    lazy = area(8, 1 << 57)
    for use in (lambda: lazy.take(), lambda: lazy.wait(Deadline(1)), lambda: lazy.wish(1, print), lambda: lazy.base(0)):
        with pytest.raises(FabricError, match="no memory for"):
            use()
    closed = area(2)
    closed.close()
    with pytest.raises(FabricError, match="closed"):
        closed.take()


def test_an_area_without_slots_asks_for_no_memory() -> None:
    """Of ranks that cannot copy."""
    none = shared_area(Pinned(), NoCopier(()), 0, 64, "staging")
    assert none.take() is None
    with pytest.raises(TransferError, match="0 slots"):
        none.wait(Deadline(60))
    none.wish(1, print)
    assert none.unwish(1) == 1


def test_ranks_of_one_process_share_and_equal_tp_pins_nothing() -> None:
    fabric = Pinned()
    here, there = manifest("prefill", 4), manifest("decode", 4)
    peers: list[Any] = []
    for tp in range(4):
        buffers = [Buffers(side, Rank(0, tp), 4).regions() for side in (here, there)]
        peers.append(PrefillPeer(here, Rank(0, tp), buffers[0], fabric, registry=("127.0.0.1", 9), options=FAST))
        peers.append(DecodePeer(there, Rank(0, tp), buffers[1], fabric, FAST))
    assert list(fabric.pinned.values()) == [FAST.staging_bytes]
    for peer in peers:
        peer.close()
        peer.close()
    assert fabric.pinned == {}
