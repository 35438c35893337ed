"""The environments of the real engines, and that nothing of a test outlives it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines.fleets import ROOT, Fleet


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """Both environments are built; said here, once, rather than by every test in its own way."""
    tool = [sys.executable, str(ROOT / "tools" / "engine_envs.py"), "sglang", "vllm", "--print-python"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], Fleet]]:
    """Make a fleet from a document; whatever was made is taken down, and leaves no process."""
    fleets: list[Fleet] = []

    def make(document: dict[str, Any]) -> Fleet:
        for other in fleets:  # one fleet at a time: each engine is 1.5 GB and twenty seconds of CPU
            other.down()
        fleet = Fleet(tmp_path_factory.mktemp(str(document["name"])), document)
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.down()
        assert survivors(fleet.path.parent) == []


def survivors(folder: Path) -> list[str]:
    """Processes whose guard's record lies in this folder, or that were started with a fleet of it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found
