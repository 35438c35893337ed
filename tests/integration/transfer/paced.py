"""A fabric in this process that moves bytes as Mooncake does: in order, in its own time, and to the end."""

import ctypes
import threading
import time
from collections import Counter, deque

from pdctl_transfer.fabric.base import LEFT, Blocks, Deadline, Transport, WriteResult, finish
from pdctl_transfer.fabric.memory import MemoryFabric


class PacedFabric(MemoryFabric):
    """What was submitted lands even though its writer has left; `settle` says when all of a peer's has.

    rate: bytes a second.
    """

    rate = 1e9

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[tuple[PacedWriting, int, int, int]] = deque()
        self._ready = threading.Condition()
        self._pending: Counter[str] = Counter()
        self._closed = False
        threading.Thread(target=self._carry, daemon=True).start()

    def begin(self, peer: MemoryFabric, blocks: Blocks) -> "PacedWriting":  # type: ignore[override]
        return PacedWriting(self, peer, blocks)

    def write(self, peer: MemoryFabric, blocks: Blocks, deadline: Deadline) -> WriteResult:
        return finish(self.begin(peer, blocks), deadline)

    def settle(self, peer: MemoryFabric) -> bool:
        with self._ready:
            return not self._pending[peer.name]

    def observed_transport(self) -> Transport:
        return "tcp"

    def close(self) -> None:
        super().close()
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def submit(self, writing: "PacedWriting", blocks: Blocks) -> None:
        with self._ready:
            for src, dst, length in zip(*(column.tolist() for column in blocks), strict=True):
                self._queue.append((writing, src, dst, length))
                self._pending[writing.peer.name] += 1
            self._ready.notify_all()

    def _carry(self) -> None:
        due = time.monotonic()
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                writing, src, dst, length = self._queue.popleft()
            due = max(due, time.monotonic() - 0.01) + length / self.rate
            time.sleep(max(0.0, due - time.monotonic()))
            ctypes.memmove(dst, src, length)
            with self._ready:
                self._pending[writing.peer.name] -= 1
                writing.left -= 1


class PacedWriting:
    """A write; all of it is submitted at the first look."""

    def __init__(self, fabric: PacedFabric, peer: MemoryFabric, blocks: Blocks) -> None:
        self.peer = peer
        self.left = len(blocks.length)
        self._fabric = fabric
        self._blocks: Blocks | None = blocks

    def look(self) -> WriteResult | None:
        if self._blocks is not None:
            self._fabric.submit(self, self._blocks)
            self._blocks = None
        return None if self.left else WriteResult(ok=True, settled=True, calls=1)

    def rest(self, deadline: Deadline) -> None:
        time.sleep(min(0.002, deadline.remaining))

    def leave(self) -> WriteResult:
        return WriteResult(ok=False, settled=self._blocks is not None or not self.left, code="PD4031", cause=LEFT)
