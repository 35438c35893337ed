"""Units on this machine, each under its guard."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import msgspec

from pdctl import python
from pdctl.errors import GateError
from pdctl.launch import process, started
from pdctl.launch.base import Started, State, Unit, UnitStatus
from pdctl.launch.record import StateError, UnitRecord, read, write

START_S = 20.0
STOP_S = 30.0
"""Longest wait for a guard that was told to stop, on top of its unit's grace."""


class LocalLauncher:
    """Starts units as guarded processes; their records and logs lie in `root/<unit>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._guards: list[subprocess.Popen[bytes]] = []

    def start(self, unit: Unit) -> None:
        """Start the unit under a new guard; return when the guard has started it."""
        folder = self.root / unit.name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.log(unit.name)
        if log.exists():
            log.replace(log.with_suffix(".log.1"))
        with suppress(OSError):  # it is there for words alone
            started.keep(folder, unit)
        ready, told = os.pipe()
        with log.open("ab") as output:
            guard = subprocess.Popen(
                python.module(sys.executable, "pdctl.launch.guard", str(folder), str(told)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=python.environment(os.environ, {process.MARK: str(folder)}),
                start_new_session=True,
                pass_fds=(told,),
            )
        os.close(told)
        self._guards.append(guard)
        try:
            self._hand_over(unit, guard, ready)
        finally:
            os.close(ready)

    def _hand_over(self, unit: Unit, guard: subprocess.Popen[bytes], ready: int) -> None:
        assert guard.stdin is not None
        document = {**asdict(unit), "env": dict(unit.env), "ports": dict(unit.ports)}
        try:
            guard.stdin.write(json.dumps(document).encode())
            guard.stdin.close()
        except BrokenPipeError:
            pass
        readable, _, _ = select.select([ready], [], [], START_S)
        if not readable or not os.read(ready, 1):
            message = f"the guard of {unit.name} did not start; its log: {self.log(unit.name)}"
            raise GateError(message, code="PD3018")

    def stop(self, names: Sequence[str]) -> None:
        """Tell all guards at once, wait for each, then kill whatever still carries a unit's mark."""
        records = {name: self._record_or_none(name) for name in names}
        for record in records.values():
            if record is not None and _guarded(record):
                process.send(_guard(record), signal.SIGTERM)
        for name, record in records.items():
            if record is not None and _guarded(record):
                _await_end(record.guard_pid, record.guard_started, STOP_S)
            self._sweep(name, record)
            self._settle(name)
        for guard in self._guards:
            guard.poll()

    def _sweep(self, name: str, record: UnitRecord | None) -> None:
        """Kill what is left of a unit: its guard if it hangs, and processes that got away."""
        same_boot = record is not None and record.boot == process.boot_id()
        sessions = [record.pid] if record is not None and same_boot and record.pid else []
        ends = time.monotonic() + STOP_S
        while left := process.marked(str(self.root / name), sessions):
            for item in left:
                process.send(item, signal.SIGKILL)
            if time.monotonic() > ends:
                pids = ", ".join(str(item.pid) for item in left)
                raise GateError(f"{name}: cannot be killed: pid {pids}", code="PD3017")
            _await_end(left[0].pid, left[0].started, 0.2)

    def _settle(self, name: str) -> None:
        """Nothing of the unit runs any more: let its record say so, whatever it said."""
        path = self.root / name / "state.json"
        record = self._record_or_none(name)
        if record is None:
            path.unlink(missing_ok=True)
        elif record.state not in _ENDED:
            write(path, msgspec.structs.replace(record, state="stopped", pid=None, started=None, since=time.time()))

    def status(self, name: str) -> UnitStatus:
        """What is true of the unit now. Raises StateError (PD3005)."""
        record = read(self.root / name / "state.json", UnitRecord)
        if record is None:
            return UnitStatus(name, "absent")
        state: State = record.state if record.state in _ENDED or _guarded(record) else "lost"  # type: ignore[assignment]
        last_exit = str(record.last_exit) if record.last_exit else None
        pid = record.pid if state in ("running", "stopping") else None
        return UnitStatus(name, state, pid, record.restarts, last_exit, record.since, record.digest)

    def started(self, name: str) -> Started | None:
        """What the unit that runs now was started from, without secrets; None where that is not known."""
        try:
            return started.kept(self.root / name, self.status(name).digest)
        except StateError:
            return None

    def log(self, name: str) -> Path:
        """The file that holds the unit's output since it was last brought up."""
        return self.root / name / "unit.log"

    def known(self) -> tuple[str, ...]:
        """Units that have a folder here."""
        return tuple(sorted(entry.name for entry in self.root.iterdir())) if self.root.is_dir() else ()

    def _record_or_none(self, name: str) -> UnitRecord | None:
        """For stopping, a damaged record is as good as none: the mark finds the processes."""
        try:
            return read(self.root / name / "state.json", UnitRecord)
        except StateError:
            return None


_ENDED = ("stopped", "failed")


def _guarded(record: UnitRecord) -> bool:
    return record.boot == process.boot_id() and process.is_alive(record.guard_pid, record.guard_started)


def _guard(record: UnitRecord) -> process.Process:
    return process.Process(record.guard_pid, "S", 0, 0, record.guard_started)


def _await_end(pid: int, started: int, timeout_s: float) -> None:
    """Wait until that process is gone, or the time is up. A zombie of our own is reaped on the way."""
    if not process.is_alive(pid, started):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
