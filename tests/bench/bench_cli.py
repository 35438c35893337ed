"""What a start of `pdctl` costs: CPU time of the whole process, the interpreter's own included; least of five."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.harness import Row, at_most, plain

EXAMPLE = Path(__file__).parents[2] / "examples/tiny-hybrid.yaml"


def rows() -> Iterator[Row]:
    """The two bounds, and the commands that people run in loops."""
    yield at_most("pdctl --version", _cpu_ms("--version"), "ms CPU", 80)
    yield at_most("pdctl --help", _cpu_ms("--help"), "ms CPU", 150)
    yield plain("pdctl up --help", _cpu_ms("up", "--help"), "ms CPU")
    yield plain("pdctl status of a fleet that is not there", _cpu_ms("status", str(EXAMPLE)), "ms CPU")


def _cpu_ms(*words: str) -> float:
    return min(_once(words) for _ in range(5))


def _once(words: tuple[str, ...]) -> float:
    process = subprocess.Popen(
        [sys.executable, "-m", "pdctl", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return (usage.ru_utime + usage.ru_stime) * 1000
