"""A fabric within one process, for tests and for engines whose two sides share an address space.

It keeps the rules of the real ones: memory must be registered, a block outside of it is refused, blocks before the
refused one may have landed.
"""

import ctypes
import itertools
import threading
from bisect import bisect_right
from typing import ClassVar, Final

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import LEFT, Blocks, Deadline, Transport, WriteResult, finish

LOOK_BLOCKS: Final = 256


class MemoryFabric:
    """One endpoint of the in-process fabric."""

    kind = "memory"
    requested: Transport = "memory"
    name: str
    _ids: ClassVar = itertools.count(1)
    _all: ClassVar[dict[str, "MemoryFabric"]] = {}

    def __init__(self) -> None:
        self.name = f"memory:{next(self._ids)}"
        self._lock = threading.Lock()
        self._spans: list[tuple[int, int]] = []
        self._all[self.name] = self

    def address(self) -> bytes:
        """The name, as bytes."""
        return self.name.encode()

    def register(self, base: int, nbytes: int, where: str = "cpu") -> None:
        """Allow writes into `[base, base + nbytes)`."""
        with self._lock:
            self._spans = sorted([*self._spans, (base, base + nbytes)])

    def deregister(self, base: int) -> None:
        """Refuse writes into memory registered at `base` from now on."""
        with self._lock:
            self._spans = [span for span in self._spans if span[0] != base]

    def connect(self, address: bytes) -> "MemoryFabric":
        """The endpoint of that name. Raises FabricError PD4011 if there is none."""
        peer = self._all.get(address.decode(errors="replace"))
        if peer is None:
            raise FabricError(f"no memory fabric {address!r} in this process", code="PD4011")
        return peer

    def allows(self, at: int, length: int) -> bool:
        """Whether the block lies within one registered span."""
        spans = self._spans
        i = bisect_right(spans, (at, 1 << 64)) - 1
        return i >= 0 and at >= spans[i][0] and at + length <= spans[i][1]

    def begin(self, peer: "MemoryFabric", blocks: Blocks) -> "MemoryWriting":
        """Copies block by block; refused at the first that is not registered."""
        return MemoryWriting(peer, blocks)

    def write(self, peer: "MemoryFabric", blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Copy until the deadline passes."""
        return finish(self.begin(peer, blocks), deadline)

    @property
    def open(self) -> bool:
        """Whether peers can still write here."""
        return self._all.get(self.name) is self

    def settle(self, peer: "MemoryFabric") -> bool:
        """Always: a copy is over when `write` returns."""
        return True

    def observed_transport(self) -> Transport:
        """Memory."""
        return "memory"

    def exposed_ports(self) -> tuple[int, ...]:
        """None."""
        return ()

    def close(self) -> None:
        """Peers can no longer write here."""
        self._all.pop(self.name, None)


class MemoryWriting:
    """A write: some blocks at each look."""

    def __init__(self, peer: MemoryFabric, blocks: Blocks) -> None:
        self._peer = peer
        self._left = iter(zip(*(column.tolist() for column in blocks), strict=True))

    def look(self) -> WriteResult | None:
        """Copy LOOK_BLOCKS."""
        some = list(itertools.islice(self._left, LOOK_BLOCKS))
        for src, dst, length in some:
            if not self._peer.open:
                return WriteResult(ok=False, settled=True, calls=1, code="PD4011", cause=f"{self._peer.name} is closed")
            if not self._peer.allows(dst, length):
                cause = f"{self._peer.name}: [{dst:#x}, +{length}) is not registered"
                return WriteResult(ok=False, settled=True, calls=1, code="PD4012", cause=cause)
            ctypes.memmove(dst, src, length)
        return None if len(some) == LOOK_BLOCKS else WriteResult(ok=True, settled=True, calls=1)

    def rest(self, deadline: Deadline) -> None:
        """Not at all."""

    def leave(self) -> WriteResult:
        """Copy no more."""
        return WriteResult(ok=False, settled=True, calls=1, code="PD4031", cause=LEFT)
