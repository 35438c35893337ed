"""Several programs as one: where one ends the others end, and how it ended is how they did."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from pdctl.launch.together import apart, together

LONG = "import time; time.sleep(600)"


def python(source: str, *own: str) -> list[str]:
    return [*own, sys.executable, "-c", source]


def started(*commands: Sequence[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(together(commands), stdout=subprocess.PIPE, text=True)


def children(of: int, count: int) -> list[psutil.Process]:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        found = psutil.Process(of).children()
        if len(found) == count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{count} children expected")


def test_commands_are_put_together_and_taken_apart() -> None:
    words = together([["A=1", "B=x=y", "run", "--flag=1", "C=2"], ["run"]])
    at = words.index("pdctl.launch.together") + 1
    assert list(apart(words[at:])) == [({"A": "1", "B": "x=y"}, ["run", "--flag=1", "C=2"]), ({}, ["run"])]


@pytest.mark.parametrize(("ends", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_one_that_ends_takes_the_others_with_it(ends: str, status: int) -> None:
    process = started(python(LONG), python(ends), python(LONG))
    said, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert "node 1 (pid" in said


def test_told_to_end_it_tells_all(tmp_path: Path) -> None:
    ready = [tmp_path / name for name in "ab"]
    source = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "pathlib.Path(os.environ['MARK']).touch()\n"
        "time.sleep(600)"
    )
    process = started(*(python(source, f"MARK={path}") for path in ready))
    ends = time.monotonic() + 30
    while not all(path.exists() for path in ready) and time.monotonic() < ends:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_none_outlives_it() -> None:
    process = started(python(LONG), python(LONG))
    below = children(process.pid, 2)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert alive == []
