"""What workers do for the sending side: write what goes straight, what is staged, sum up, and prove that it is over.

What is packed is `stream.py`. A write's own things stay with it: its peer, its deadline, its scratch; the job says what
may still be under way, and what that still reads from.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.fabric.base import Deadline, Fabric, WriteResult, Writing, finish
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.area import Area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.work import joined, straight_blocks
from pdctl_transfer.session.bytes.writer import gathered, staged_blocks
from pdctl_transfer.session.drive.jobs import Job
from pdctl_transfer.session.drive.legwork import LegWork
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine.events import Result
from pdctl_transfer.telemetry import Tally

AGAIN: Final = frozenset({"PD4011", "PD4031"})
"""Failures of a write that may be another one's, or the moment's: worth another try."""
MOMENT_S: Final = 0.01
"""A small write that is over in so much needs no announcement."""


class Resources:
    """What writes of one rank need. `began`: a leg's first byte is about to move."""

    def __init__(
        self,
        fabric: Fabric,
        copier: Copier,
        regions: tuple[Region, ...],
        scratch: Area,
        gathering: threading.Semaphore,
        began: Callable[[LegWork], None],
        faltered: Callable[[LegWork, Failure, bool], None],
    ) -> None:
        self.fabric, self.copier, self.regions, self.scratch = fabric, copier, regions, scratch
        self.gathering, self._began, self.faltered = gathering, began, faltered

    def begin(self, leg: LegWork, *, say: bool = True) -> None:
        """Something of the leg is about to move. Once is enough. `say`: so that decode lends slots and watches the
        time; of what is over in a moment it hears by the end of it."""
        leg.started_at = leg.started_at or time.monotonic()
        if say and not leg.said:
            leg.said = True
            self._began(leg)

    def reach(self, leg: LegWork) -> Any:
        """The decode rank, for the fabric. Raises FabricError PD4011."""
        if leg.peer is None:
            leg.peer = self.fabric.connect(leg.partner.hello.address)
        return leg.peer

    def sums(self, leg: LegWork) -> dict[str, int]:
        """What the receiver compares with."""
        found = self.copier.sums(leg.part, leg.here, leg.ask.verify, "prefill")
        self.copier.done()
        return found


def straight(on: Resources, leg: LegWork, number: int, job: Job) -> tuple[Result, ...]:
    """What goes straight of an installment, and the sums where they are not a job of their own."""
    sent = leg.installments[number]
    quick = sent.quick
    on.begin(leg, say=not quick)
    here, there = (
        {kind: ids[kind][span] for kind, span in sent.spans.items() if kind in ids} for ids in (leg.here, leg.there)
    )
    by_kind = straight_blocks(leg.part, sent.ways, on.regions, leg.partner.hello.regions, here, there)
    blocks = joined(by_kind.values())
    on.copier.done()  # whatever the engine's step must have written, if its copier was told to wait
    began = time.monotonic()
    with begun(on, leg, job, blocks) as writing:
        result = writing.look()
        sums = on.sums(leg) if quick else {}  # this and what is counted: while the wire is busy
        tallies = {kind: Tally(len(some.length), int(some.length.sum())) for kind, some in by_kind.items()}
        result = result or (in_a_moment(writing) if quick else None)
        if result is None or not result.ok:
            on.begin(leg)
        if result is None:
            result = finish(writing, job.deadline)
    end_write(job, result)
    seconds = time.monotonic() - began
    total = max(1, sum(tally.bytes for tally in tallies.values()))
    for tally in tallies.values():
        tally.seconds, tally.calls = seconds * tally.bytes / total, result.calls
    count(leg, tallies)
    return (told(leg, result, sums=sums),)


def in_a_moment(writing: Writing) -> WriteResult | None:
    """The write's result, if it comes within MOMENT_S."""
    moment = Deadline(MOMENT_S)
    while not moment.passed:
        writing.rest(moment)
        result = writing.look()
        if result is not None:
            return result
    return None


def sum_up(on: Resources, leg: LegWork, job: Job) -> tuple[Result, ...]:
    """The sums, by a worker of their own."""
    on.begin(leg)
    return (Result(leg.key, ok=True, sums=on.sums(leg)),)


def staged(on: Resources, leg: LegWork, number: int, base: int, job: Job) -> tuple[Result, ...]:
    """One chunk, to the place that decode lent for it."""
    on.begin(leg)
    kind, chunk = leg.chunks[number]
    ids = leg.here[kind]
    buffer = None
    if any(gathered(chunk, ids)):
        job.slots.append(on.scratch.wait(job.deadline, leg.partner.hello.incarnation))
        buffer = on.scratch.buffer(job.slots[0])
    with on.gathering:
        blocks = staged_blocks(on.copier, chunk, ids, base, buffer)
    tally = Tally(len(blocks.length), int(blocks.length.sum()))
    began = time.monotonic()
    with begun(on, leg, job, blocks) as writing:
        result = finish(writing, job.deadline)
    end_write(job, result)
    tally.seconds, tally.calls = time.monotonic() - began, result.calls
    if result.ok:
        count(leg, {kind: tally})
    return (told(leg, result, held=give_back(on, job)),)


def prove(on: Resources, leg: LegWork, job: Job) -> tuple[Result, ...]:
    """Whether nothing of the leg is under way any more: its peer's process has ended, or the fabric has proven it for
    that very peer. In this order, since a fabric may take long to find that nobody is there."""
    proven = leg.partner.vital.ended() or (leg.peer is not None and on.fabric.settle(leg.peer))
    return (Result(leg.key, ok=proven),)


@contextmanager
def begun(on: Resources, leg: LegWork, job: Job, blocks: Blocks) -> Iterator[Writing]:
    """A write. Should anything raise before it has come to a result, it is left, and counts as under way."""
    writing = on.fabric.begin(on.reach(leg), blocks)
    job.writing += 1
    try:
        yield writing
    except BaseException:
        job.writing -= writing.leave().settled
        raise


def end_write(job: Job, result: WriteResult) -> None:
    """The write has come to a result; one that is not settled stays under way."""
    job.writing -= result.settled


def give_back(on: Resources, job: Job) -> tuple[int, ...]:
    """Scratch of a job that ends: free where nothing of it is under way, else held by the leg."""
    slots = tuple(job.slots)
    job.slots.clear()
    if job.writing:
        return slots
    on.scratch.give(*slots)
    return ()


def told(leg: LegWork, result: WriteResult, held: tuple[int, ...] = (), sums: dict[str, int] | None = None) -> Result:
    """What a write came to, for the machine."""
    failure = None if result.ok else blamed(leg, result)
    return Result(leg.key, result.ok, result.settled, failure, sums or {}, held, again=result.code in AGAIN)


def blamed(leg: LegWork, result: WriteResult) -> Failure:
    """A failed write, with the side that the result blames."""
    return Failure(result.code, f"{leg.partner.name}: {result.cause}", "prefill" if result.here else "decode")


def count(leg: LegWork, tallies: dict[str, Tally]) -> None:
    """Add what was moved by kind. Jobs of one leg may do so at once: each kind is one job's, but for staged chunks."""
    with leg.counting:
        for kind, tally in tallies.items():
            leg.tallies.setdefault(kind, Tally()).add(tally)
