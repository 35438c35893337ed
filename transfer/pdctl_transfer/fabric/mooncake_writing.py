"""Writes over Mooncake: which batches to a peer are under way, and when to look whether they have ended."""

import threading
import time
from collections import deque
from typing import Final, NamedTuple, Protocol

import msgspec

from pdctl_transfer.fabric.base import AHEAD, LEFT, Blocks, Deadline, WriteResult, batches

TICKET_S: Final = 0.25
POLL_S: Final = (0.0001, 0.0005)
"""Pause between looks around the moment when a short batch should end by the peer's rate, and a long one."""
LATE_S: Final = 0.002
"""Longest pause after that moment."""
LONGEST_S: Final = 0.02


class Address(msgspec.Struct, frozen=True):
    """A session id, `host:port`, and a word of that engine's memory for fences."""

    name: str
    fence: int


class Batch(NamedTuple):
    """A submitted batch: all blocks but the last under one id, the last under its own. 0 where there is none."""

    body: int
    tail: int
    nbytes: int = 0
    began: float = 0.0


class MooncakePeer:
    """A peer, and what was submitted to it and has not ended."""

    def __init__(self, address: Address) -> None:
        self.name, self.fence = address.name, address.fence
        self.tickets = threading.Semaphore(AHEAD)
        """One for each batch under way, whoever writes it: together fewer blocks than Mooncake queues (2048)."""
        self.settling = threading.Lock()
        self.pending: list[Batch] = []
        """Batches whose writer gave up waiting; each keeps its ticket until it has ended."""
        self.rate = 1e9
        """Bytes a second of the last batches: when to look again."""


class Submits(Protocol):
    """The fabric, as far as a write needs it."""

    @property
    def batch(self) -> int:
        """Most blocks of a batch."""
        ...

    def submit(self, peer: MooncakePeer, blocks: Blocks) -> Batch | None:
        """A batch that was taken, None where it was refused."""
        ...

    def ended(self, peer: MooncakePeer, batch: Batch) -> bool | None:
        """Whether it went well, None while it goes on."""
        ...


class MooncakeWriting:
    """A write: at most AHEAD batches of all writes to a peer are under way. Mooncake has one status for all that can go
    wrong.
    """

    def __init__(self, fabric: Submits, peer: MooncakePeer, blocks: Blocks) -> None:
        self._fabric, self._peer = fabric, peer
        self._left = deque(batches(blocks, fabric.batch))
        self._flying: deque[Batch] = deque()
        self._calls = 0
        self._ticket = False
        """A ticket is held for the next batch."""
        self._began = time.monotonic()

    def look(self) -> WriteResult | None:
        """Submit what the peer's tickets allow, and see what has ended."""
        while self._left or self._flying:
            if self._left and (self._ticket or self._peer.tickets.acquire(blocking=False)):
                self._ticket = False
                batch = self._fabric.submit(self._peer, self._left.popleft())
                self._calls += 1
                if batch is None:
                    return self._failed()
                self._flying.append(batch)
                continue
            ended = self._fabric.ended(self._peer, self._flying[0]) if self._flying else None
            if ended is None:
                return None
            self._flying.popleft()
            self._peer.tickets.release()
            if not ended:
                return self._failed()
        return WriteResult(ok=True, settled=True, calls=self._calls)

    def rest(self, deadline: Deadline) -> None:
        """Until a ticket is free, or for most of what the oldest batch should take still: slept as long as that, one
        would never be seen to end before the rate says, and the rate could only fall. Past that moment pauses grow with
        how late it is. A look costs a thread's wake-up, so the longer a batch takes, the less often.
        """
        if not self._flying:
            self._ticket = self._peer.tickets.acquire(timeout=min(TICKET_S, deadline.remaining))
            return
        batch = self._flying[0]
        expected = batch.nbytes / self._peer.rate
        left = batch.began + expected - time.monotonic()
        shortest = min(POLL_S[1], max(POLL_S[0], expected / 32))
        pause = left * 3 / 4 if left > 2 * shortest else min(LATE_S, max(shortest, -left / 4))
        time.sleep(min(LONGEST_S, pause, deadline.remaining))

    def leave(self) -> WriteResult:
        """What was submitted keeps its tickets until it has ended."""
        if self._ticket:
            self._peer.tickets.release()
        self._peer.pending += self._flying
        cause = f"{self._peer.name}: {LEFT}"
        return WriteResult(ok=False, settled=not self._flying, calls=self._calls, code="PD4031", cause=cause)

    def _failed(self) -> WriteResult:
        self._peer.pending += self._flying
        cause = f"Mooncake failed to write to {self._peer.name} after {time.monotonic() - self._began:.1f} s"
        return WriteResult(ok=False, settled=False, calls=self._calls, code="PD4011", cause=cause)
