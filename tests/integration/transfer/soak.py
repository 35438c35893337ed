"""A soak: many requests at once, of mixed sizes, some aborted by either side. What started has ended, nothing is left.

python -m tests.integration.transfer.soak 600
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from pdctl_transfer.session import Options
from tests.integration.transfer.ranks import OPTIONS, Host, Process, Spec, indices, pair
from tests.unit.transfer_session.world import manifest, ranks

IN_FLIGHT = 16
ITEMS = 16 * 24
SOAK = replace(
    OPTIONS, bootstrap_s=30, waiting_s=30, transfer_s=30, silent_s=20, staging_bytes=1 << 20, chunk_bytes=1 << 17
)


@dataclass
class Report:
    """Counts of everything that was started and ended, by side, and what was wrong."""

    started: int = 0
    confirmed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    usage: list[dict[str, dict[str, int]]] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """Empty if the soak held."""
        found = list(self.wrong)
        for side in ("prefill", "decode"):
            ended = self.confirmed[side] + sum(n for key, n in self.failed.items() if key.startswith(side))
            if ended != self.started:
                found.append(f"{side}: {self.started} started, {ended} ended")
        unexpected = {key: n for key, n in self.failed.items() if not key.endswith("PD4033")}
        if unexpected:
            found.append(f"failures that nobody asked for: {unexpected}")
        first, last = self.usage[0], self.usage[-1]
        for side, after in last.items():
            for what, allowance in (("threads", 2), ("fds", 4), ("rss_mib", 64)):
                if after[what] > first[side][what] + allowance:
                    found.append(f"{side}: {what} grew from {first[side][what]} to {after[what]}")
            if after["rooms"] or after["kept"]:
                found.append(f"{side}: {after['rooms']} rooms and {after['kept']} attempts left")
        return found


class Soaker(Host):
    """A side that keeps its own slots of items, so that requests in flight do not share any."""

    def batch(self, rooms: list[tuple[int, int, int]], at: Any) -> None:
        """Open rooms (room, slot, pages); prefill sends them too."""
        self.painted_ids: list[dict[str, list[int]]] = []
        for room, slot, pages in rooms:
            ids = self.ids(slot, pages)
            if self.spec.manifest.role == "decode":
                self.paint(ids, 0xCC)
                self.open(room, at, ids)
            else:
                self.send(room, ids)

    def finish(self, rooms: list[tuple[int, int, int]]) -> list[tuple[str, str, str]]:
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


def soak(seconds: float, seed: int = 0, options: Options = SOAK) -> Report:
    """Run for so long. TP 2 → 1, so that some of the state is staged."""
    rng = random.Random(seed)
    here, there = manifest("prefill", 2, scale=8), manifest("decode", 1, scale=8)
    report = Report()
    specs = [Spec(m, tuple(ranks(m)), options=options, items=ITEMS) for m in (here, there)]
    with pair(*specs, Soaker) as (prefill, decode):
        at = prefill.call("address")
        end = time.monotonic() + seconds
        room = 1
        while time.monotonic() < end or len(report.usage) < 2:
            rooms = [(room + slot, slot, rng.randint(1, 16)) for slot in range(IN_FLIGHT)]
            room += IN_FLIGHT
            aborted = {number for number, _, _ in rooms if rng.random() < 0.1}
            both: tuple[Process, Process] = (prefill, decode) if rng.random() < 0.5 else (decode, prefill)
            for process in both:
                process.post("batch", rooms, at)
            for process in both:
                process.result()
            for number in aborted:
                rng.choice(both).call("abort", number)
            for process in both:
                process.post("finish", rooms)
            for name, process in (("prefill", prefill), ("decode", decode)):
                for (number, _, _), (state, code, wrong) in zip(rooms, process.result(180), strict=True):
                    report.confirmed[name] += state == "confirmed"
                    report.failed[f"{name} {code}"] += state == "failed"
                    if wrong:
                        report.wrong.append(f"{name}: {wrong}")
                    if state == "failed" and number not in aborted:
                        report.wrong.append(f"{name}: room {number} failed with {code}")
            if not decode.call("clean"):
                report.wrong.append("decode: a reusable item was written late")
            report.started += len(rooms)
            report.usage.append({"prefill": prefill.call("usage"), "decode": decode.call("usage")})
        report.failed = Counter({key: n for key, n in report.failed.items() if n})
    return report


def main() -> int:
    """Print the report; exit status 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    report = soak(arguments.seconds, arguments.seed)
    print(f"started {report.started}, confirmed {dict(report.confirmed)}, failed {dict(report.failed)}")
    print(f"first {report.usage[0]}\nlast  {report.usage[-1]}")
    for fault in report.faults:
        print(f"fault: {fault}")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
