"""Slots of registered memory: who holds which, who is served next, and where in the pool.

Everything is decided under one lock, and everybody is told without it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Deadline, Fabric
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Buffer

_kept: "Final[set[Pool]]" = set()
"""Closed pools that the fabric may still write into or read from: their memory is used for nothing else."""


class Wish:
    """One slot for one borrower. `got` is told which; None for a thread that looks at `slot` itself."""

    def __init__(
        self,
        borrower: Hashable,
        got: Callable[[int], None] | None = None,
        siblings: int = 1,
        place: int = 0,
        near: int | None = None,
        reserve: int = 0,
    ) -> None:
        """`reserve`: so many slots stay free for borrowers that hold none."""
        self.borrower, self.got, self.reserve = borrower, got, reserve
        self.siblings, self.place, self.near = siblings, place, near
        self.slot: int | None = None


class Pool:
    """Slots of memory that is allocated and registered by the first call of `memory`. For any thread."""

    def __init__(self, fabric: Fabric, slots: int, slot_bytes: int) -> None:
        self.slots, self.slot_bytes = slots, slot_bytes
        self._fabric = fabric
        self._memory: Buffer | None = None
        self._closed = False
        self._making = threading.Lock()
        self._free = list(range(slots))
        """The one used last is at the end: it is still in cache."""
        self._lent: dict[int, Hashable] = {}
        self._held: Counter[Hashable] = Counter()
        self._stuck: set[int] = set()
        self._wishes: list[Wish] = []
        """In the order in which they came. While a slot is free, none but of who must leave it to others."""
        self._changed = threading.Condition()

    def memory(self, copier: Copier) -> Buffer:
        """All of it, made by this copier if by none before. FabricError PD4014 where it cannot be allocated or
        registered, each time anew."""
        if self._memory is None:
            with self._making:
                if self._memory is None:
                    self._memory = self._made(copier)
        return self._memory

    def _made(self, copier: Copier) -> Buffer:
        if self._closed or not self.slots:
            raise FabricError("an area that is closed, or empty, has no memory", code="PD4014")
        memory = copier.allocate(self.slots * self.slot_bytes)
        self._fabric.register(memory.base, memory.nbytes, copier.where)
        return memory

    @property
    def free(self) -> int:
        """Slots that are not lent."""
        return len(self._free)

    @property
    def exhausted(self) -> bool:
        """All slots are stuck, or there are none."""
        return len(self._stuck) == self.slots

    def take(self, wish: Wish) -> int | None:
        """A free slot, None where there is none."""
        with self._changed:
            return self._assign(wish) if self._free and self._may(wish) else None

    def wait(self, wish: Wish, deadline: Deadline) -> int | None:
        """A slot, None once the deadline has passed or all are stuck."""
        with self._changed:
            self._wishes.append(wish)
            self._serve()  # nobody else: while others wish who may, nothing is free
            while wish.slot is None:
                if deadline.passed or self.exhausted:
                    self._wishes.remove(wish)
                    break
                self._changed.wait(deadline.remaining)
            return wish.slot

    def wake(self) -> None:
        """Let those who wait look at their deadlines."""
        with self._changed:
            self._changed.notify_all()

    def wish(self, wish: Wish) -> None:
        """Serve it now or later."""
        with self._changed:
            self._wishes.append(wish)
            served = self._serve()
        _tell(served)

    def unwish(self, borrower: Hashable) -> int:
        """Forget a borrower's wishes; how many."""
        with self._changed:
            before = len(self._wishes)
            self._wishes = [wish for wish in self._wishes if wish.borrower != borrower]
            return before - len(self._wishes)

    def give(self, slots: Sequence[int]) -> None:
        """Take slots back and serve who wishes. ValueError where one is not lent."""
        with self._changed:
            wrong = [slot for slot in slots if slot not in self._lent]
            if wrong or len(set(slots)) < len(slots):
                raise ValueError(f"slots {list(slots)} are given back, {wrong or slots} not lent, or twice")
            for slot in slots:
                borrower = self._lent.pop(slot)
                self._held[borrower] -= 1
                if not self._held[borrower]:
                    del self._held[borrower]
                self._stuck.discard(slot)
                self._free.append(slot)
            if self._closed and not self._lent:
                _kept.discard(self)
            served = self._serve()
        _tell(served)

    def stick(self, slot: int) -> None:
        """The slot may never come back. ValueError where it is not lent."""
        with self._changed:
            if slot not in self._lent:
                raise ValueError(f"slot {slot} is not lent")
            self._stuck.add(slot)
            if self.exhausted:
                self._changed.notify_all()

    def close(self) -> None:
        """Deregister. The memory stays mapped as long as anything of it is lent."""
        with self._making:
            self._closed = True
        with self._changed:
            if self._lent:
                _kept.add(self)
        if self._memory is not None:
            self._fabric.deregister(self._memory.base)

    # With the lock held.

    def _serve(self) -> list[Wish]:
        """Assign free slots to wishes; those that must be told."""
        served = []
        while self._free and (able := [wish for wish in self._wishes if self._may(wish)]):
            wish = min(able, key=lambda wish: self._held[wish.borrower])
            self._wishes.remove(wish)
            self._assign(wish)
            if wish.got is None:
                self._changed.notify_all()
            else:
                served.append(wish)
        return served

    def _may(self, wish: Wish) -> bool:
        return len(self._free) > wish.reserve or not self._held[wish.borrower]

    def _assign(self, wish: Wish) -> int:
        slot = wish.slot = self._placed(wish)
        self._free.remove(slot)
        self._lent[slot] = wish.borrower
        self._held[wish.borrower] += 1
        return slot

    def _placed(self, wish: Wish) -> int:
        """The slot that it asks for, or the one at its place of as many in a row as it has siblings, of those used
        last; else any."""
        if wish.near is not None and wish.near in self._free:
            return wish.near
        if wish.near is None and wish.siblings > 1:
            free = set(self._free)
            for slot in reversed(self._free):
                first = slot - slot % wish.siblings
                if free.issuperset(range(first, first + wish.siblings)):
                    return first + wish.place
        return self._free[-1]


def _tell(served: Sequence[Wish]) -> None:
    for wish in served:
        if wish.got is not None and wish.slot is not None:
            wish.got(wish.slot)
