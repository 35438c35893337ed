"""A soak: many requests at once, of mixed sizes, some aborted by either side. What started has ended, nothing is left.

Counts of threads at work, descriptors and memory are judged by their trend, once the pair is warm.

python -m tests.integration.transfer.soak --seconds 600
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from pdctl_transfer.session import Options
from tests.integration.transfer.ranks import OPTIONS, Host, Process, Spec, indices, pair
from tests.integration.transfer.trend import FEWEST, leak, steady
from tests.unit.transfer_session.world import manifest, ranks, spaced

IN_FLIGHT = 16
PAGES = 16
ITEMS = IN_FLIGHT * 24
ALLOWED: Final = {"at_work": 2.0, "fds": 2.0, "rss_mib": 16.0}
"""Growth over a whole soak that is no leak."""
WARM_SAMPLES, WARM_BATCHES = 5, 60
"""Warm is a pair whose counts reach no new peak for so many batches, which must be within so many."""
SOAK = replace(
    OPTIONS, bootstrap_s=30, waiting_s=30, transfer_s=30, silent_s=20, staging_bytes=1 << 20, chunk_bytes=1 << 17
)


Room = tuple[int, int, int]
"""Number, slot, pages."""


@dataclass
class Report:
    """Counts of everything that was started and ended, by side, and what was wrong."""

    started: int = 0
    confirmed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    usage: list[dict[str, dict[str, int]]] = field(default_factory=list)
    """What each side held after each batch."""
    warm: int | None = None
    """The sample from which on the trend is judged; None while the pair is cold."""

    @property
    def peaks(self) -> list[list[int]]:
        """The counts that must become steady: [sample][count]."""
        return [[used[what] for used in sample.values() for what in ("threads", "fds")] for sample in self.usage]

    @property
    def faults(self) -> list[str]:
        """Empty if the soak held."""
        found = list(self.wrong)
        for side in ("prefill", "decode"):
            ended = self.confirmed[side] + sum(n for key, n in self.failed.items() if key.startswith(side))
            if ended != self.started:
                found.append(f"{side}: {self.started} started, {ended} ended")
        unexpected = {key: n for key, n in self.failed.items() if n and not key.endswith("PD4033")}
        if unexpected:
            found.append(f"failures that nobody asked for: {unexpected}")
        for side, last in self.usage[-1].items():
            found += [f"{side}: {what} {said}" for what in ALLOWED if (said := self._leak(side, what))]
            if last["rooms"] or last["kept"]:
                found.append(f"{side}: {last['rooms']} rooms and {last['kept']} attempts left")
        return found

    def _leak(self, side: str, what: str) -> str:
        series = [sample[side][what] for sample in self.usage]
        if self.warm is None:
            return f"not steady within {len(series)} batches: {series}"
        return leak(series[self.warm :], ALLOWED[what])


class Soaker(Host):
    """A side that keeps its own slots of items, so that requests in flight do not share any. They lie apart, and are
    sent in up to three installments."""

    buffers_class = spaced(gap=24)

    def batch(self, rooms: list[Room], at: Any) -> None:
        """Open rooms; prefill sends them too."""
        self.painted_ids: list[dict[str, list[int]]] = []
        for room, slot, pages in rooms:
            ids = self.ids(slot, pages)
            if self.spec.manifest.role == "decode":
                self.paint(ids, 0xCC)
                self.open(room, at, ids)
            else:
                self.send(room, ids, parts=1 + room % 3)

    def finish(self, rooms: list[Room]) -> list[tuple[str, str, str]]:
        """State, code and what is wrong for each; waits until its buffers are reusable."""
        out = []
        for room, slot, pages in rooms:
            end = max(end[:2] for end in self.wait(room, 60))  # "failed" where an abort came between two ranks' ends
            wrong = "" if self.wait_reusable(room, 60) else f"room {room} never reusable"
            if end[0] == "confirmed" and self.spec.manifest.role == "decode":
                bad = self.wrong(room, self.ids(slot, pages))
                wrong = wrong or (f"room {room}: {bad[:3]}" if bad else "")
            self.paint(self.ids(slot, pages), 0x33)
            self.painted_ids.append(self.ids(slot, pages))
            self.forget(room)
            out.append((*end, wrong))
        return out

    def clean(self) -> bool:
        """Whether what was reusable still is as its last owner left it: nothing was written late."""
        return all(self.painted(ids, 0x33) for ids in self.painted_ids)

    def ids(self, slot: int, pages: int) -> dict[str, list[int]]:
        base = slot * (ITEMS // IN_FLIGHT)
        drawn = indices(slot, ITEMS // IN_FLIGHT, pages)
        return {kind: [base + i for i in values] for kind, values in drawn.items()}


class Soak:
    """Batches of requests over one pair, whose report grows."""

    def __init__(self, prefill: Process, decode: Process, seed: int) -> None:
        self.report = Report()
        self._sides = {"prefill": prefill, "decode": decode}
        self._at = prefill.call("address")
        self._rng = random.Random(seed)
        self._numbers = count(1)

    def warm_up(self) -> None:
        """Full batches of the largest requests, none aborted, until none needs more threads than those before."""
        for _ in range(WARM_BATCHES):
            self.batch(PAGES, PAGES, aborted=0)
            if steady(self.report.peaks, WARM_SAMPLES):
                self.report.warm = len(self.report.usage)
                return

    def batch(self, fewest: int, most: int, aborted: float) -> None:
        """IN_FLIGHT requests of so many pages, of which a share is aborted: open, send, wait, look."""
        rng, report = self._rng, self.report
        rooms = [(next(self._numbers), slot, rng.randint(fewest, most)) for slot in range(IN_FLIGHT)]
        unwanted = {number for number, _, _ in rooms if rng.random() < aborted}
        both = list(self._sides.values())
        rng.shuffle(both)
        for process in both:
            process.post("batch", rooms, self._at)
        for process in both:
            process.result()
        for number in unwanted:
            rng.choice(both).call("abort", number)
        for process in both:
            process.post("finish", rooms)
        for name, process in self._sides.items():
            self._ended(name, rooms, process.result(180), unwanted)
        if not self._sides["decode"].call("clean"):
            report.wrong.append("decode: a reusable item was written late")
        report.started += len(rooms)
        report.usage.append({name: process.call("usage") for name, process in self._sides.items()})

    def _ended(self, side: str, rooms: list[Room], ends: list[tuple[str, str, str]], unwanted: set[int]) -> None:
        report = self.report
        for (number, _, _), (state, code, wrong) in zip(rooms, ends, strict=True):
            report.confirmed[side] += state == "confirmed"
            report.failed[f"{side} {code}"] += state == "failed"
            if wrong:
                report.wrong.append(f"{side}: {wrong}")
            if state == "failed" and number not in unwanted:
                report.wrong.append(f"{side}: room {number} failed with {code}")


def soak(seconds: float, seed: int = 0, options: Options = SOAK) -> Report:
    """Warm up, then run for so long. TP 2 → 1, so that some of the state is staged."""
    here, there = manifest("prefill", 2, scale=8), manifest("decode", 1, scale=8)
    specs = [Spec(m, tuple(ranks(m)), options=options, items=ITEMS) for m in (here, there)]
    with pair(*specs, Soaker) as (prefill, decode):
        soaked = Soak(prefill, decode, seed)
        soaked.warm_up()
        end = time.monotonic() + seconds
        batches = 0
        while time.monotonic() < end or batches < FEWEST:
            soaked.batch(1, PAGES, aborted=0.1)
            batches += 1
    return soaked.report


def main() -> int:
    """Print the report; exit status 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = soak(arguments.seconds, arguments.seed)
    failed = {key: n for key, n in report.failed.items() if n}
    print(f"started {report.started}, confirmed {dict(report.confirmed)}, failed {failed}")
    print(f"warm after {report.warm} batches: {report.usage[report.warm or 0]}\nlast  {report.usage[-1]}")
    for fault in report.faults:
        print(f"fault: {fault}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
