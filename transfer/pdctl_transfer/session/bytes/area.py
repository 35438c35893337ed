"""A registered area cut into equal slots, lent and given back: the receiver's staging, the sender's scratch."""

import threading

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Deadline, Fabric
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Buffer


class Area:
    """`nbytes` of the copier's memory cut into slots of `slot_bytes`, registered with the fabric until `close`. For any
    thread.

    Raises FabricError PD4014 where there is not so much memory, or the fabric refuses it.
    """

    def __init__(self, fabric: Fabric, copier: Copier, nbytes: int, slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self.slots = nbytes // slot_bytes
        self._fabric = fabric
        self._memory = copier.allocate(self.slots * slot_bytes) if self.slots else Buffer(0, 0, None)
        self._free = list(range(self.slots))
        self._lock = threading.Condition()
        if self.slots:
            fabric.register(self._memory.base, self._memory.nbytes)

    def take(self, deadline: Deadline | None = None) -> int | None:
        """A free slot, or None where none came free before the deadline passed. Without one it does not wait."""
        with self._lock:
            while not self._free:
                if deadline is None or deadline.passed:
                    return None
                self._lock.wait(deadline.remaining)
            return self._free.pop()

    def wait(self, deadline: Deadline) -> int:
        """A free slot. Raises TransferError PD4041 where none comes free before the deadline."""
        slot = self.take(deadline)
        if slot is None:
            raise TransferError("no scratch memory came free in time", code="PD4041")
        return slot

    def take_at(self, slot: int) -> int | None:
        """This slot, or another where it is not free; None where none is."""
        with self._lock:
            if slot not in self._free:
                return self._free.pop() if self._free else None
            self._free.remove(slot)
            return slot

    def take_in_row(self, count: int, place: int) -> int | None:
        """The slot at `place` of `count` free ones in a row, of those used last; any where there are not so many."""
        with self._lock:
            free = set(self._free)
            for slot in reversed(self._free):
                first = slot - slot % count
                if free.issuperset(range(first, first + count)):
                    self._free.remove(first + place)
                    return first + place
            return self._free.pop() if self._free else None

    def wake(self) -> None:
        """Let those who wait for a slot see that their deadline was cancelled."""
        with self._lock:
            self._lock.notify_all()

    def give(self, slot: int) -> None:
        """Return a slot that nobody writes any more."""
        with self._lock:
            self._free.append(slot)
            self._lock.notify()

    @property
    def free(self) -> int:
        """Slots that are not lent."""
        return len(self._free)

    def base(self, slot: int) -> int:
        """Address of a slot."""
        return self._memory.base + slot * self.slot_bytes

    def buffer(self, slot: int) -> Buffer:
        """The slot's memory."""
        return self._memory.part(slot * self.slot_bytes, self.slot_bytes)

    def close(self) -> None:
        """Deregister. The memory lives as long as anybody uses it."""
        if self.slots:
            self._fabric.deregister(self.base(0))
            self.slots = 0
