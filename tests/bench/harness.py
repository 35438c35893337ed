"""Rows of `make bench`, and honest ways to measure them: ratios within one run, or the least CPU time of five."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

Taken = TypeVar("Taken")


class Row(Struct, frozen=True):
    """One figure. `target` is a human-readable bound or None; `ok` is None where there is no target."""

    name: str
    value: float
    unit: str
    target: float | None = None
    ok: bool | None = None


def at_most(name: str, value: float, unit: str, target: float) -> Row:
    """A figure that should not exceed its target."""
    return Row(name, value, unit, target, value <= target)


def at_least(name: str, value: float, unit: str, target: float) -> Row:
    """A figure that should reach its target."""
    return Row(name, value, unit, target, value >= target)


def plain(name: str, value: float, unit: str) -> Row:
    """A figure without a target."""
    return Row(name, value, unit)


def cpu_seconds(run: Callable[[], Any], repeat: int = 5) -> float:
    """Least CPU time of `repeat` runs, garbage collected before each."""
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def in_turn(repeat: int, *runs: Callable[[], Taken]) -> tuple[list[Taken], ...]:
    """What each run returns, `repeat` times in turn, every other time backwards (A B, B A, …): drift of the machine
    and what one run leaves to the next hit all alike.
    """
    taken: tuple[list[Taken], ...] = tuple([] for _ in runs)
    order = list(zip(taken, runs, strict=True))
    for _ in range(repeat):
        for into, run in order:
            into.append(run())
        order.reverse()
    return taken


def paired(first: Sequence[float], second: Sequence[float]) -> float:
    """Median of first/second, pair by pair, of what was measured in turn."""
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` percent of all do not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share / 100) - 1)]


def show(row: Row) -> None:
    """A line of the table."""
    mark = {None: " ", True: "✓", False: "✗"}[row.ok]
    bound = "" if row.target is None else f"   target {row.target:g}"
    print(f"  {mark} {row.name:<96} {row.value:>12.4g} {row.unit}{bound}", flush=True)


def write(rows: Sequence[Row], name: str) -> None:
    """Into `build/`, as JSON."""
    out = Path("build") / name
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
