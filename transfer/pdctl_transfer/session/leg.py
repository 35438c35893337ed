"""One decode rank of one room, on the sending side: what it asked for, and the write that serves it."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Blocks, Deadline, WriteResult
from pdctl_transfer.plan import bind
from pdctl_transfer.session.checksum import sums
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Identity, Link
from pdctl_transfer.session.messages import Ask, Grant, Settled
from pdctl_transfer.session.work import Part

if TYPE_CHECKING:
    from pdctl_transfer.session.prefill import PrefillPeer

Column = NDArray[np.int64]


class Sent(Struct, frozen=True):
    """What the engine gave to `send`."""

    indices: dict[str, Column]
    metadata: bytes


class Leg:
    """Touched by the loop thread, but for `job`, which runs on a worker and touches only what it computes."""

    def __init__(self, ask: Ask, link: Link, part: Part, me: Identity, transfer_s: float) -> None:
        self.room, self.attempt, self.verify = ask.room, ask.attempt, ask.verify
        self.indices = {kind: np.frombuffer(data, dtype="<i8") for kind, data in ask.indices.items()}
        self.staged = frozenset(ask.staged)
        self.link, self.part, self._me = link, part, me
        self.deadline = Deadline(transfer_s)
        self.job = self._run
        self.queued = self.busy = self.written = self.confirmed = self.dead = False
        self.may_write = False
        """The write failed in a way after which the fabric may go on writing."""
        self.settled = True
        """Nothing of it is under way: True before it starts, and after it provably ended."""
        self.released: Callable[[], None] = lambda: None
        """Called whenever the room's buffers may have become free."""
        self.failure: Failure | None = None
        self.sums: dict[str, int] = {}
        self.blocks = self.bytes = self.calls = 0
        self.queued_at = self.started_at = self.ended_at = 0.0
        self._sent: Sent | None = None
        self._peer: PrefillPeer | None = None

    def queue(self, sent: Sent, peer: "PrefillPeer") -> None:
        """Have it written."""
        self._sent, self._peer = sent, peer
        self.queued = self.busy = True
        self.settled = False
        self.queued_at = time.monotonic()
        peer.submit(self)

    def granted(self, grant: Grant) -> None:
        """A chunk of staging is ours."""

    def settle(self) -> None:
        """Nothing of it can land any more."""
        self.settled = True
        self.report()

    def report(self) -> None:
        """Tell decode that nothing more will land, once that is so."""
        if self.settled:
            self.link.send(Settled(self.room, self.attempt))

    def _run(self) -> None:
        assert self._sent is not None
        assert self._peer is not None
        peer = self._peer
        self.started_at = time.monotonic()
        peer.loop.call(peer.writing, self)
        try:
            result = self._write(self._sent)
            if result.ok:
                self.sums = sums(self.part, self._me.regions, self._sent.indices, self.verify, side="prefill")
        except TransferError as error:
            result = WriteResult(ok=False, settled=True, code=error.code, cause=error.message)
        self.ended_at = time.monotonic()
        self.calls = result.calls
        peer.loop.call(self._over, result)

    def _write(self, sent: Sent) -> WriteResult:
        hello = self.link.hello
        assert hello is not None
        fabric = self._me.fabric
        if self.link.peer is None:
            self.link.peer = fabric.connect(hello.address)
        blocks = Blocks(*bind(self.part.plan, self._me.regions, hello.regions, sent.indices, self.indices))
        self.blocks, self.bytes = len(blocks.length), int(blocks.length.sum())
        return fabric.write(self.link.peer, blocks, self.deadline)

    def _over(self, result: WriteResult) -> None:
        assert self._peer is not None
        self.busy = False
        self.written = result.ok
        self.may_write = not result.settled
        if result.ok:
            self.settled = True
        else:
            self.failure = Failure(result.code or "PD4011", f"{self.link.name}: {result.cause}", "decode")
        self._peer.finished(self)
