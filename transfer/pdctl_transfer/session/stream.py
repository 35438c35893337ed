"""What must be gathered for the decode ranks of a room, piece by piece, by one worker.

While a piece is gathered, those before it are on the wire; the ranks take turns, so that all connections are busy. One
thread does it all: handing each piece from thread to thread would cost more than is gained.
"""

import time
from collections import deque
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import AHEAD, LEFT, Deadline, WriteResult, Writing
from pdctl_transfer.session.bytes.packing import Chunk
from pdctl_transfer.session.bytes.writer import packed_blocks
from pdctl_transfer.session.leg import Leg, Outcome
from pdctl_transfer.telemetry import Tally

if TYPE_CHECKING:
    from pdctl_transfer.session.prefill import PrefillPeer


LOOK_S: Final = 0.005
"""How long a stream rests at most before it looks at all its writes again."""


class Lane:
    """One leg's share of a stream."""

    def __init__(self, leg: Leg) -> None:
        self.leg = leg
        self.left = len(leg.pieces)
        self.result = WriteResult(ok=True, settled=True)
        self.tallies: dict[str, Tally] = {}
        self.held: list[int] = []

    def outcome(self) -> Outcome:
        """What is told of the leg when the stream is over."""
        result = self.result
        if self.left and result.ok:  # another leg failed first
            result = replace(result, ok=False, code="PD4031", cause=LEFT)
        return Outcome(result, self.tallies, self.held)


class Flight(NamedTuple):
    """A piece on the wire, and the scratch slot that it is read from."""

    lane: Lane
    tally: Tally
    slot: int
    writing: Writing
    began: float


class Stream:
    """The pieces of some legs of one room. Everything but `start` is the worker's."""

    def __init__(self, peer: "PrefillPeer", legs: Iterable[Leg]) -> None:
        self._peer = peer
        self._lanes = [Lane(leg) for leg in legs]
        self._flying: deque[Flight] = deque()

    def start(self) -> None:
        """Have it run. On the loop thread."""

        def job() -> None:
            self._run()
            for lane in self._lanes:
                self._peer.loop.call(lane.leg.over, job, None, lane.outcome())

        for lane in self._lanes:
            lane.leg.jobs.append(job)
        self._peer.workers.submit(job)

    def _run(self) -> None:
        for lane in self._lanes:
            lane.leg.begin()
        turns = zip_longest(*([(lane, *piece) for piece in lane.leg.pieces] for lane in self._lanes))
        for turn in chain.from_iterable(turns):
            if turn is not None and not self._send(*turn):
                break
        for lane in self._lanes:  # meanwhile the wire is busy
            if not lane.leg.summed_apart:
                lane.leg.sum_up()
        while self._flying:
            self._wait()

    def _send(self, lane: Lane, kind: str, piece: Chunk) -> bool:
        """Gather a piece and put it on the wire; False once something has failed."""
        self._see()
        area, tally = self._peer.scratch, lane.tallies.setdefault(kind, Tally())
        try:
            peer = lane.leg.reach()
            slot = self._slot(lane.leg)
        except TransferError as error:
            self._failed(lane, WriteResult(ok=False, settled=True, code=error.code, cause=error.message))
            return False
        with self._peer.gathering:
            blocks = packed_blocks(self._peer.me.copier, piece, *lane.leg.places(kind), area.buffer(slot))
        tally.blocks += len(blocks.length)
        tally.bytes += int(blocks.length.sum())
        flight = Flight(lane, tally, slot, self._peer.me.fabric.begin(peer, blocks), time.monotonic())
        if not self._over(flight):
            self._flying.append(flight)
        return all(lane.result.ok and not lane.leg.deadline.passed for lane in self._lanes)

    def _slot(self, leg: Leg) -> int:
        """Scratch for a piece: as much as all connections can use at a time, at least one slot. Raises PD4041."""
        while self._flying:
            if len(self._flying) < AHEAD * len(self._lanes):
                slot = self._peer.scratch.take(leg)
                if slot is not None:
                    return slot
            self._wait()
        return self._peer.scratch.wait(leg.deadline, leg)

    def _see(self) -> None:
        """Take note of the oldest that have landed."""
        while self._flying and self._over(self._flying[0]):
            self._flying.popleft()

    def _wait(self) -> None:
        """Until one has landed. All are looked at: one that has ended keeps what another stream may be waiting for."""
        while True:
            left = deque(flight for flight in self._flying if not self._over(flight))
            if len(left) < len(self._flying):
                self._flying = left
                return
            left[0].writing.rest(Deadline(LOOK_S))

    def _over(self, flight: Flight) -> bool:
        late = flight.lane.leg.deadline.passed
        result = flight.writing.leave() if late else flight.writing.look()
        if result is not None:
            self._landed(flight, result)
        return result is not None

    def _landed(self, flight: Flight, result: WriteResult) -> None:
        lane, tally = flight.lane, flight.tally
        lane.left -= 1
        tally.seconds += time.monotonic() - flight.began
        tally.calls += result.calls
        if result.settled:
            self._peer.scratch.give(flight.slot)
        else:
            lane.held.append(flight.slot)
        if not result.ok:
            self._failed(lane, result)

    def _failed(self, lane: Lane, result: WriteResult) -> None:
        """Told at once: the other legs' writes end when the room has failed."""
        settled = lane.result.settled and result.settled
        if lane.result.ok:
            lane.result = result
            self._peer.loop.call(lane.leg.failed, result)
        lane.result = replace(lane.result, settled=settled)
