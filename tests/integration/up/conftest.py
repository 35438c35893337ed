"""Fleets of fake engines, run by the real `pdctl` in processes of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from pdctl.errors import PdctlError
from pdctl.launch import process
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import FleetFolder, state_root
from pdctl.up.status import fleet_status

ROOT = Path(__file__).parents[3]


def until(condition: Callable[[], Any], timeout_s: float = 20) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "the condition did not come true in time"
        time.sleep(0.02)


class Fleet:
    """One fleet file and the commands run on it."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def write(self, prefill: str = "{}", decode: str = "{}", more: str = "") -> None:
        self.path.write_text(
            f"schema: pdctl.fleet/v1\nname: {self.name}\nmodel: {{path: builtin:tiny-hybrid}}\nengine: reference\n"
            f"transfer: {{backend: mooncake, protocol: tcp}}\nprefill: {prefill}\ndecode: {decode}\n{more}"
        )

    def start(
        self,
        *words: str,
        disk: int | None = None,
        stdout: int | IO[str] = subprocess.PIPE,
        stderr: int | IO[str] = subprocess.PIPE,
    ) -> "subprocess.Popen[str]":
        """`disk`: bytes that any file may have, as if the disk were full beyond."""
        limit = [] if disk is None else ["prlimit", f"--fsize={disk}"]
        command = [*limit, sys.executable, "-m", "tests.integration.up.driver", *words]
        return subprocess.Popen(command, cwd=ROOT, text=True, stdout=stdout, stderr=stderr)

    def run(self, *words: str, disk: int | None = None) -> "subprocess.CompletedProcess[str]":
        running = self.start(*words, disk=disk)
        out, err = running.communicate(timeout=100)
        return subprocess.CompletedProcess(words, running.returncode, out, err)

    def up(self, *flags: str) -> "subprocess.CompletedProcess[str]":
        return self.run("up", str(self.path), "--skip-phase", "preflight", *flags)

    def down(self) -> "subprocess.CompletedProcess[str]":
        return self.run("down", self.name)

    def status(self) -> dict[str, Any]:
        return fleet_status(self.name).document()

    def unit(self, name: str) -> dict[str, Any]:
        return next(unit for unit in self.status()["units"] if unit["name"] == name)

    def left(self) -> list[int]:
        """Processes of the fleet that run, guards included."""
        units = state_root() / self.name / "units"
        folders = [str(folder) for folder in units.iterdir()] if units.is_dir() else []
        return [found.pid for folder in folders for found in process.marked(folder)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    one = Fleet(tmp_path / "fleet.yaml", "fake")
    one.write()
    yield one
    for pid in one.left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher = LocalLauncher(FleetFolder(one.name).units)
    with suppress(PdctlError):  # their cgroups go, too
        launcher.stop(launcher.known())
