"""Times this tree's transfer core against an older revision's: `python -m tests.bench.against REV`.

The old core comes out of git into a temporary folder. Both run in processes of their own, under this tree's bench and
in turn; what is printed is the time of a request here over that of its neighbour there, the median of all such pairs.
How fast a process is also depends on where its memory lies and on who else uses the machine, so new ones are started
until the interval that holds the median 19 times in 20 is narrow. Give HEAD to see how far two equal cores differ.
"""

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.bench.bench_transfer import IDS, STRAIGHT
from tests.bench.harness import Row, at_most, in_turn, plain, show, write
from tests.bench.remote import ROOT, pair

TARGET = 1.05
NARROW = 0.04
"""From end to end: narrower, 1.05 and 1 are told apart."""

GROUPS = ((1, 4, ("consecutive",)), (4, 1, ("consecutive",)), (1, 1, ("consecutive", "random")))
"""TP of both sides and kinds of page ids: the throughput rows of `bench_transfer`."""


class Effort(NamedTuple):
    """How often new processes are started, at least and at most, and how many pairs of requests they move."""

    least: int
    most: int
    pairs: int


def main() -> int:
    """Prints the table and writes `build/against.json`; 1 where the revision cannot be had."""
    parser = argparse.ArgumentParser(description="Time this tree's transfer core against an older one's.")
    parser.add_argument("revision")
    parser.add_argument("--least", type=int, default=3, help="start new processes at least so often (%(default)s)")
    parser.add_argument("--most", type=int, default=8, help="and at most so often (%(default)s)")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of requests in between (%(default)s)")
    asked = parser.parse_args()
    made = []
    with tempfile.TemporaryDirectory() as folder:
        old = extracted(asked.revision, Path(folder))
        print(f"\nagainst {asked.revision}", flush=True)
        for src, dst, kinds in GROUPS:
            for row in compared(src, dst, kinds, old, Effort(asked.least, asked.most, asked.pairs)):
                made.append(row)
                show(row)
    write(made, "against.json")
    return 0


def extracted(revision: str, into: Path) -> Path:
    """The folder with the revision's `pdctl_transfer`."""
    archive = subprocess.run(["git", "archive", revision, "transfer"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        sys.exit(f"no transfer/ of {revision}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(into, filter="data")
    return into / "transfer"


def compared(src: int, dst: int, kinds: Sequence[str], old: Path, effort: Effort) -> Iterator[Row]:
    """The rows of one pair of TP. `old`: where the old core lies."""
    taken: dict[str, list[Taken]] = {kind: [] for kind in kinds}
    for launch in range(effort.most):
        for kind, made in launched(src, dst, kinds, old, effort.pairs, first_new=launch % 2 > 0).items():
            taken[kind].append(made)
        if launch + 1 >= effort.least and all(narrow(made) for made in taken.values()):
            break
    for kind, launches in taken.items():
        name = f"TP {src} → {dst}, 128 MiB, {kind} pages: time, new / old"
        low, high = interval(launches)
        yield at_most(name, float(np.median([made.wall for made in launches])), "×", TARGET)
        yield plain(f"{name}, 19 times in 20 at least", low, "×")
        yield plain(f"{name}, 19 times in 20 at most", high, "×")
        cpu = float(np.median([made.cpu for made in launches]))
        yield plain(f"TP {src} → {dst}, 128 MiB, {kind} pages: sender's CPU, new / old", cpu, "×")
        if low <= TARGET < high:
            print(f"    not decided after {len(launches)} × {effort.pairs} pairs: use a quieter machine, or --most")


class Taken(NamedTuple):
    """new/old of the pairs of one launch."""

    wall: list[float]
    cpu: list[float]


def launched(src: int, dst: int, kinds: Sequence[str], old: Path, pairs: int, *, first_new: bool) -> dict[str, Taken]:
    """Starts both, and moves each kind of ids in turn; the first pair of each is not counted."""
    new = ROOT / "transfer"
    found = {}
    with ExitStack() as stack:
        cores = (new, old) if first_new else (old, new)
        sides = {core: stack.enter_context(pair(src, dst, core=core)) for core in cores}
        for kind in kinds:
            moves = [partial(sides[core].move, IDS[kind], STRAIGHT) for core in (new, old)]
            in_turn(1, *moves)
            ours, theirs = in_turn(pairs, *moves)
            wall, cpu = ([a[n] / b[n] for a, b in zip(ours, theirs, strict=True)] for n in (0, 1))
            found[kind] = Taken(wall, cpu)
    return found


def narrow(launches: Sequence[Taken]) -> bool:
    """Whether enough was measured."""
    low, high = interval(launches)
    return high - low <= NARROW


def interval(launches: Sequence[Taken]) -> tuple[float, float]:
    """Where the median lies 19 times in 20, by drawing launches, and pairs of each, again with replacement."""
    ratios = np.array([made.wall for made in launches])
    count, pairs = ratios.shape
    rng = np.random.default_rng(0)
    rows = rng.integers(count, size=(2000, count, 1))
    medians = np.median(ratios[rows, rng.integers(pairs, size=(2000, count, pairs))], axis=(1, 2))
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), float(high)


if __name__ == "__main__":
    sys.exit(main())
