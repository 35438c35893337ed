"""Rows of `make bench`, and honest ways to measure them: ratios within one run, or the least CPU time of five."""

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct


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


def median_ratio(first: Callable[[], float], second: Callable[[], float], repeat: int = 5) -> float:
    """Median of first/second, measured in turn (A B A B …), so that drift of the machine cancels out."""
    return statistics.median(first() / second() for _ in range(repeat))
