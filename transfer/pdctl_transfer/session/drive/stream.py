"""What must be gathered for the decode ranks of a room, piece by piece, by one worker.

While a piece is gathered, those before it are on the wire; the ranks take turns, so that all connections are busy. One
thread does it all: handing each piece from thread to thread would cost more than is gained.
"""

import time
from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import Final, NamedTuple

from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import AHEAD, LEFT, Deadline, WriteResult, Writing
from pdctl_transfer.session.bytes.packing import Chunk
from pdctl_transfer.session.bytes.writer import packed_blocks
from pdctl_transfer.session.drive.jobs import Job
from pdctl_transfer.session.drive.legwork import LegWork
from pdctl_transfer.session.drive.writes import AGAIN, Resources, blamed, count, end_write, told
from pdctl_transfer.session.machine.events import Result
from pdctl_transfer.telemetry import Tally

LOOK_S: Final = 0.005
"""How long a stream rests at most before it looks at all its writes again."""


class Lane:
    """One leg's share of a stream. `held`: scratch that what may be under way reads from."""

    def __init__(self, leg: LegWork, number: int) -> None:
        self.leg, self.pieces = leg, leg.installments[number].pieces
        self.left = len(self.pieces)
        self.result = WriteResult(ok=True, settled=True)
        self.tallies: dict[str, Tally] = {}
        self.held: list[int] = []
        self.sums: dict[str, int] = {}

    def outcome(self) -> Result:
        """What is told of the leg when the stream is over."""
        result = self.result
        if self.left and result.ok:  # another leg failed first
            result = replace(result, ok=False, code="PD4031", cause=LEFT)
        if result.ok:
            count(self.leg, self.tallies)
        return told(self.leg, result, tuple(self.held), self.sums)


class Flight(NamedTuple):
    """A piece on the wire, and the scratch slot that it is read from."""

    lane: Lane
    tally: Tally
    slot: int
    writing: Writing
    began: float


def stream(on: Resources, legs: Sequence[LegWork], number: int, job: Job) -> tuple[Result, ...]:
    """Write the pieces of an installment of these legs."""
    return Stream(on, legs, number, job).run()


class Stream:
    """The pieces of some legs of one room; everything is one worker's."""

    def __init__(self, on: Resources, legs: Sequence[LegWork], number: int, job: Job) -> None:
        self._on, self._job = on, job
        self._lanes = [Lane(leg, number) for leg in legs]
        self._flying: dict[int, Flight] = {}
        """By their slots, the oldest first."""

    def run(self) -> tuple[Result, ...]:
        """Write all, or as much as goes well. What is on the wire when something raises is left, and said to be."""
        try:
            self._run()
        except BaseException:
            for flight in self._flying.values():
                end_write(self._job, flight.writing.leave())
            self._job.slots += [slot for lane in self._lanes for slot in lane.held]
            raise
        self._job.slots.clear()
        return tuple(lane.outcome() for lane in self._lanes)

    def _run(self) -> None:
        for lane in self._lanes:
            self._on.begin(lane.leg)
        turns = zip_longest(*([(lane, *piece) for piece in lane.pieces] for lane in self._lanes))
        for turn in chain.from_iterable(turns):
            if turn is not None and not self._send(*turn):
                break
        for lane in self._lanes:  # meanwhile the wire is busy
            if not lane.leg.summed_apart:
                lane.sums = self._on.sums(lane.leg)
        while self._flying:
            self._wait()

    def _send(self, lane: Lane, kind: str, piece: Chunk) -> bool:
        """Gather a piece and put it on the wire; False once something has failed."""
        self._see()
        on, tally = self._on, lane.tallies.setdefault(kind, Tally())
        try:
            peer = on.reach(lane.leg)
            slot = self._slot(lane.leg)
        except TransferError as error:
            failed = WriteResult(ok=False, settled=True, code=error.code, cause=error.message, here=True)
            self._failed(lane, failed)
            return False
        if slot is None:
            return False
        self._job.slots.append(slot)
        with on.gathering:
            blocks = packed_blocks(on.copier, piece, *lane.leg.places(kind), on.scratch.buffer(slot))
        tally.blocks += len(blocks.length)
        tally.bytes += int(blocks.length.sum())
        flight = Flight(lane, tally, slot, on.fabric.begin(peer, blocks), time.monotonic())
        self._job.writing += 1
        self._flying[slot] = flight
        self._over(flight)
        return all(lane.result.ok for lane in self._lanes) and not self._job.deadline.passed

    def _slot(self, leg: LegWork) -> int | None:
        """Scratch for a piece: as much as all connections can use at a time, at least one slot, never all of it; None
        once a write has failed, which may keep what would be waited for. Raises PD4041."""
        borrower, scratch = leg.partner.hello.incarnation, self._on.scratch
        most = min(AHEAD * len(self._lanes), max(1, scratch.slots - scratch.reserve))
        while self._flying:
            if len(self._flying) < most:
                slot = scratch.take(borrower)
                if slot is not None:
                    return slot
            self._wait()
            if not all(lane.result.ok for lane in self._lanes):
                return None
        return scratch.wait(self._job.deadline, borrower)

    def _see(self) -> None:
        """Take note of the oldest that have landed."""
        for flight in list(self._flying.values()):
            if not self._over(flight):
                return

    def _wait(self) -> None:
        """Until one has landed. All are looked at: one that has ended keeps what another stream may be waiting for."""
        before = len(self._flying)
        while True:
            for flight in list(self._flying.values()):
                self._over(flight)
            if len(self._flying) < before:
                return
            next(iter(self._flying.values())).writing.rest(Deadline(LOOK_S))

    def _over(self, flight: Flight) -> bool:
        result = flight.writing.leave() if self._job.deadline.passed else flight.writing.look()
        if result is not None:
            self._landed(flight, result)
        return result is not None

    def _landed(self, flight: Flight, result: WriteResult) -> None:
        lane, tally = flight.lane, flight.tally
        lane.left -= 1
        tally.seconds += time.monotonic() - flight.began
        tally.calls += result.calls
        del self._flying[flight.slot]
        end_write(self._job, result)
        self._job.slots.remove(flight.slot)
        if result.settled:
            self._on.scratch.give(flight.slot)
        else:
            lane.held.append(flight.slot)
        if not result.ok:
            self._failed(lane, result)

    def _failed(self, lane: Lane, result: WriteResult) -> None:
        """Told at once: the other legs' writes end when the room has failed."""
        settled = lane.result.settled and result.settled
        if lane.result.ok:
            lane.result = result
            self._on.faltered(lane.leg, blamed(lane.leg, result), result.code in AGAIN)
        lane.result = replace(lane.result, settled=settled)
