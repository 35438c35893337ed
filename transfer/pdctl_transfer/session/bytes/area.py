"""Registered memory cut into equal slots, lent and given back: the receiver's staging, the sender's scratch.

One area a process, however many ranks share its fabric: whoever asks for the same gets a share of the same (`pool.py`).
"""

import os
import threading
from collections.abc import Callable, Hashable
from typing import Final, Literal

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Deadline, Fabric
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Buffer
from pdctl_transfer.session.bytes.pool import Pool, Wish

Purpose = Literal["staging", "scratch"]
Key = tuple[int, str, int, int, Purpose]

_areas: Final[dict[Key, tuple[Pool, int]]] = {}
"""Pools that are in use, and by how many."""
_sharing = threading.Lock()


class Area:
    """One holder's share of a pool. For any thread."""

    def __init__(self, key: Key, pool: Pool, copier: Copier) -> None:
        self._key, self._pool, self._copier = key, pool, copier
        self._closed = False

    @property
    def slots(self) -> int:
        """How many there are, lent or not."""
        return self._pool.slots

    @property
    def slot_bytes(self) -> int:
        """Size of each."""
        return self._pool.slot_bytes

    @property
    def free(self) -> int:
        """Slots that are not lent."""
        return self._pool.free

    @property
    def reserve(self) -> int:
        """How many slots are kept from those who take or wait while they hold some: a frozen one never has all."""
        return self.slots // 4

    @property
    def exhausted(self) -> bool:
        """All slots are stuck, or there are none: what waits for one will not get it by itself."""
        return self._pool.exhausted

    def base(self, slot: int) -> int:
        """Address of a slot."""
        return self.buffer(slot).base

    def buffer(self, slot: int) -> Buffer:
        """A slot's memory. FabricError PD4014 where this is the first use of the area and there is no memory for it."""
        return self._pool.memory(self._copier).part(slot * self.slot_bytes, self.slot_bytes)

    def take(self, borrower: Hashable = None) -> int | None:
        """A free slot, None where there is none, or it is kept for others (`reserve`). FabricError PD4014 as from
        `buffer`."""
        self._make()
        return self._pool.take(Wish(borrower, reserve=self.reserve))

    def wait(self, deadline: Deadline, borrower: Hashable = None) -> int:
        """A free slot, served as from `wish`. Raises TransferError PD4041 where none comes free before the deadline, or
        at once where all are stuck; FabricError PD4014 as from `buffer`."""
        self._make()
        slot = self._pool.wait(Wish(borrower, reserve=self.reserve), deadline)
        if slot is None:
            stuck = f"all {self.slots} slots are held by writes that may never end"
            cause = stuck if self.exhausted else f"none of {self.slots} slots came free in time"
            raise TransferError(f"no memory to copy through: {cause}", code="PD4041")
        return slot

    def wake(self) -> None:
        """Let those who wait for a slot see that their deadline was cancelled."""
        self._pool.wake()

    def wish(
        self,
        borrower: Hashable,
        got: Callable[[int], None],
        *,
        siblings: int = 1,
        place: int = 0,
        near: int | None = None,
    ) -> None:
        """Have `got(slot)` called once there is a slot: now, by this thread, or later, by the one that gives it back.

        Of all that wish, the borrower that holds fewest is served, among equals who wished first. `borrower` names it
        in the whole process. `got` must not raise. FabricError PD4014 as from `buffer`.
        near: the slot that is wanted, another where it is lent. siblings, place: where there are so many free slots in
        a row, the one at this place of them, so that the others' fit beside it.
        """
        self._make()
        self._pool.wish(Wish(borrower, got, siblings, place, near))

    def unwish(self, borrower: Hashable) -> int:
        """Forget what a borrower wished for; how many wishes. A slot that is on its way to it still comes, and must be
        given back."""
        return self._pool.unwish(borrower)

    def give(self, *slots: int) -> None:
        """Return slots that nobody reads or writes any more, then serve who wishes. Several that lie side by side
        should come back together. ValueError, and nothing is returned, where one is not lent."""
        self._pool.give(slots)

    def stuck(self, slot: int) -> None:
        """A write that may never end still uses this slot. It stays lent until it is given back. ValueError where it is
        not lent."""
        self._pool.stick(slot)

    def close(self) -> None:
        """Give up this share; with the last one the memory is deregistered. Safe to call twice."""
        with _sharing:
            if self._closed:
                return
            self._closed = True
            pool, holders = _areas.pop(self._key)
            if holders > 1:
                _areas[self._key] = pool, holders - 1
                return
        pool.close()

    def _make(self) -> None:
        if self.slots:
            self._pool.memory(self._copier)


def shared_area(fabric: Fabric, copier: Copier, nbytes: int, slot_bytes: int, purpose: Purpose) -> Area:
    """A share of the process's area of this size and purpose, in memory where the copier says, for this fabric.

    Staging is allocated and registered now, raising FabricError PD4014 where that fails; scratch by its first use, so
    that ranks that never gather pin nothing.
    """
    key = (id(fabric), copier.where, nbytes, slot_bytes, purpose)
    with _sharing:
        pool, holders = _areas.get(key) or (Pool(fabric, nbytes // slot_bytes, slot_bytes), 0)
        if purpose == "staging" and pool.slots:
            pool.memory(copier)
        _areas[key] = pool, holders + 1
    return Area(key, pool, copier)


def _forked() -> None:
    """A child shares no area with its parent, and whoever held the lock there is not here."""
    global _sharing
    _sharing = threading.Lock()
    _areas.clear()


os.register_at_fork(after_in_child=_forked)
