"""One decode rank of one room, on the sending side: what it asked for, and the writes that serve it.

Straight kinds are one job, each staged chunk that decode grants a place for is another, and so are the sums that the
receiver compares. What is packed is one job for all legs of the room (`stream.py`).
State is touched by the loop thread only; jobs run on workers, touch only what they compute, and come back through it.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Blocks, Deadline, Peer, WriteResult, finish
from pdctl_transfer.session.bytes.copying import Buffer
from pdctl_transfer.session.bytes.cost import Load, Way, resolve
from pdctl_transfer.session.bytes.packing import Chunk, chunks, pieces
from pdctl_transfer.session.bytes.work import Part, joined, straight_blocks
from pdctl_transfer.session.bytes.writer import gathered, staged_blocks
from pdctl_transfer.session.drive.workers import Job
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.options import Region
from pdctl_transfer.session.wire.messages import Ask, Grant, Landed, Settled
from pdctl_transfer.telemetry import Tally, Telemetry

if TYPE_CHECKING:
    from pdctl_transfer.session.prefill import PrefillPeer

Column = NDArray[np.int64]


class Sent(Struct, frozen=True):
    """What the engine gave to `send`."""

    indices: dict[str, Column]
    metadata: bytes


class Outcome(NamedTuple):
    """What a job brings back: its result, what it moved by kind, scratch that is still in use."""

    result: WriteResult
    tallies: dict[str, Tally]
    held: list[int]


class Leg:
    """See the module."""

    def __init__(self, ask: Ask, link: Link, part: Part, peer: "PrefillPeer") -> None:
        self.room, self.attempt, self.verify = ask.room, ask.attempt, ask.verify
        self.indices = {kind: np.frombuffer(data, dtype="<i8") for kind, data in ask.indices.items()}
        self.ways: dict[str, Way] = ask.ways
        self.link, self.part, self._peer = link, part, peer
        self.deadline = Deadline(peer.options.waiting_s + peer.options.transfer_s)
        self.jobs: list[Job] = []
        """Queued and running jobs."""
        self.queued = self.written = self.confirmed = self.dead = False
        self.may_write = False
        """A write failed in a way after which the fabric may go on writing."""
        self.settled = True
        """Nothing of it is under way: True before it starts, and after it provably ended."""
        self.released: Callable[[], None] = lambda: None
        """Called whenever the room's buffers may have become free."""
        self.failure: Failure | None = None
        self.sums: dict[str, int] = {}
        self.tallies: dict[str, Tally] = {}
        self.queued_at = self.started_at = self.ended_at = 0.0
        self._chunk_bytes = link.chunk_bytes
        self.pieces: list[tuple[str, Chunk]] = []
        """What must be gathered and then goes straight, for the room's stream."""
        self.summed_apart = False
        """A job of its own computes the sums."""
        self._chunks: list[tuple[str, Chunk]] = []
        self._granted: set[int] = set()
        self._landed = 0
        self._held: list[int] = []
        self._sent: Sent | None = None

    def queue(self, sent: Sent) -> None:
        """Have it written."""
        self._sent = sent
        self.queued, self.settled = True, False
        self.queued_at = time.monotonic()
        me = self._peer.me
        loads = {
            kind: Load(strips, self.indices[kind], sent.indices[kind])
            for kind, strips in self.part.strips.items()
            if kind in self.indices and kind in sent.indices
        }
        transport, copies = me.fabric.observed_transport(), me.copier.can_copy
        self.ways = resolve(self.ways, loads, transport, self._chunk_bytes, copies=copies)
        split = self.part.split(self.ways)
        for kind, strips in split.staged.items():
            items = len(sent.indices.get(kind, ()))
            self._chunks += [(kind, chunk) for chunk in chunks(strips, items, self._chunk_bytes)]
        for kind, strips in split.packed.items():
            items = len(sent.indices.get(kind, ()))
            self.pieces += [(kind, piece) for piece in pieces(strips, items, self._chunk_bytes)]
        if split.direct:
            self._submit(self._straight)
        self.summed_apart = bool(split.direct) or not self.pieces or self.verify == "full"
        if self.summed_apart:
            self._submit(self._summed)

    def granted(self, grant: Grant) -> None:
        """A place for a staged chunk; repeated or wrong ones change nothing."""
        if self.dead or not 0 <= grant.chunk < len(self._chunks) or grant.chunk in self._granted:
            return
        self._granted.add(grant.chunk)
        self._submit(partial(self._staged, grant.chunk, grant.base), grant.chunk)

    def stop(self) -> None:
        """Let running jobs end at the next batch, and queued ones never start."""
        self.dead = True
        self.deadline.cancel()
        self._peer.scratch.wake()
        self.jobs = [job for job in self.jobs if not self._peer.workers.abandon(job)]

    def settle(self) -> None:
        """Nothing of it can land any more."""
        self.settled = True
        for slot in self._held:
            self._peer.scratch.give(slot)
        self._held.clear()
        self.report()

    def report(self) -> None:
        """Tell decode that nothing more will land, once that is so."""
        if self.settled:
            self.link.send(Settled(self.room, self.attempt))

    def record(self, telemetry: Telemetry) -> None:
        """Count what was moved."""
        assert self._sent is not None
        telemetry.queued(self.link.name, self.started_at - self.queued_at)
        for kind, tally in self.tallies.items():
            way, items = self.ways.get(kind, "direct"), len(self._sent.indices.get(kind, ()))
            telemetry.written(self.room, self.link.name, kind, way, tally, items)

    def _submit(self, work: Callable[[], Outcome], chunk: int | None = None) -> None:
        def job() -> None:
            try:
                outcome = work()
            except TransferError as error:
                outcome = Outcome(WriteResult(ok=False, settled=True, code=error.code, cause=error.message), {}, [])
            self._peer.loop.call(self.over, job, chunk, outcome)

        self.jobs.append(job)
        self._peer.workers.submit(job)

    def failed(self, result: WriteResult) -> None:
        """A write failed while others of the same job go on."""
        self.failure = self.failure or Failure(result.code, f"{self.link.name}: {result.cause}", "decode")
        self._peer.finished(self)

    # On workers.

    def begin(self) -> None:
        """Something is about to move. Once is enough."""
        if not self.started_at:
            self.started_at = time.monotonic()
            self._peer.loop.call(self._peer.writing, self)

    def sum_up(self) -> None:
        """Compute what the receiver compares with."""
        assert self._sent is not None
        self.sums = self._peer.me.copier.sums(self.part, self._sent.indices, self.verify, "prefill")

    def places(self, kind: str) -> tuple[Column, Sequence[Region], Column]:
        """Ids here, regions and ids there."""
        assert self._sent is not None
        assert self.link.hello is not None
        return self._sent.indices[kind], self.link.hello.regions, self.indices[kind]

    def reach(self) -> Peer:
        """The decode rank, for the fabric. Raises FabricError PD4011."""
        if self.link.peer is None:
            assert self.link.hello is not None
            self.link.peer = self._peer.me.fabric.connect(self.link.hello.address)
        return self.link.peer

    def _straight(self) -> Outcome:
        """What goes straight."""
        self.begin()
        sent, me, hello = self._sent, self._peer.me, self.link.hello
        assert sent is not None
        assert hello is not None
        straight = straight_blocks(self.part, self.ways, me.regions, hello.regions, sent.indices, self.indices)
        blocks = joined(straight.values())
        whole = Tally()
        result = self._write(blocks, whole)
        tallies: dict[str, Tally] = {}
        for kind, blocks in straight.items():
            tally = tallies[kind] = Tally(len(blocks.length), int(blocks.length.sum()))
            tally.seconds = whole.seconds * tally.bytes / max(1, whole.bytes)
        return Outcome(result, tallies, [])

    def _summed(self) -> Outcome:
        """The sums, by a worker of their own."""
        self.begin()
        self.sum_up()
        return Outcome(WriteResult(ok=True, settled=True), {}, [])

    def _staged(self, number: int, base: int) -> Outcome:
        """One chunk, to the place that decode lent for it."""
        assert self._sent is not None
        kind, chunk = self._chunks[number]
        ids = self._sent.indices[kind]
        held: list[int] = []
        tally = Tally()
        if any(gathered(chunk, ids)):
            slot, scratch = self._scratch()
            with self._peer.gathering:
                blocks = staged_blocks(self._peer.me.copier, chunk, ids, base, scratch)
            result = self._write(blocks, tally)
            self._return(slot, result, held)
        else:
            result = self._write(staged_blocks(self._peer.me.copier, chunk, ids, base, None), tally)
        return Outcome(result, {kind: tally}, held)

    def _write(self, blocks: Blocks, tally: Tally) -> WriteResult:
        began = time.monotonic()
        result = finish(self._peer.me.fabric.begin(self.reach(), blocks), self.deadline)
        tally.seconds += time.monotonic() - began
        tally.blocks += len(blocks.length)
        tally.bytes += int(blocks.length.sum())
        tally.calls += result.calls
        return result

    def _scratch(self) -> tuple[int, Buffer]:
        area = self._peer.scratch
        slot = area.wait(self.deadline, self)
        return slot, area.buffer(slot)

    def _return(self, slot: int, result: WriteResult, held: list[int]) -> None:
        if result.settled:
            self._peer.scratch.give(slot)
        else:
            held.append(slot)

    # Back on the loop.

    def over(self, job: Job, chunk: int | None, outcome: Outcome) -> None:
        """A job has ended, with this outcome for the leg."""
        result = outcome.result
        self.jobs = [other for other in self.jobs if other is not job]
        self._held += outcome.held
        for kind, tally in outcome.tallies.items():
            self.tallies.setdefault(kind, Tally()).add(tally)
        self.may_write |= not result.settled
        self.ended_at = time.monotonic()
        if not result.ok:
            self.failure = self.failure or Failure(result.code, f"{self.link.name}: {result.cause}", "decode")
        elif chunk is not None:
            self._landed += 1
            self.link.send(Landed(self.room, self.attempt, chunk))
        self.written = not self.jobs and self.failure is None and self._landed == len(self._chunks)
        self.settled = self.written
        self._peer.finished(self)
