"""Units on this machine, each under its guard."""

import json
import logging
import os
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import msgspec

from pdctl import python
from pdctl.errors import GateError
from pdctl.launch import cgroup, private, process, started
from pdctl.launch.base import Started, State, Unit, UnitStatus
from pdctl.launch.identity import Seen, guards, ours
from pdctl.launch.outlet import shift
from pdctl.launch.record import StateError, UnitRecord, UnwritableError, read, write
from pdctl.launch.steps import run_all
from pdctl.redact import hide_argv

_LOG = logging.getLogger(__name__)

START_S = 20.0
STOP_S = 30.0
"""Longest wait for a guard that was told to stop, on top of its unit's grace."""


class LocalLauncher:
    """Starts units as guarded processes; their records and logs lie in `root/<unit>/`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._guards: list[subprocess.Popen[bytes]] = []

    def start(self, unit: Unit) -> None:
        """Start the unit under a new guard; return when the guard has started it.

        Raises GateError: PD3014 for a folder that others may write, PD3018; UnwritableError (PD3016).
        """
        folder = self.root / unit.name
        try:
            private.make(self.root, folder)
            output = self._new_log(unit.name)
        except OSError as error:
            raise UnwritableError(folder, error) from error
        _LOG.debug("starts %s: %s", unit.name, shlex.join(hide_argv(unit.argv)))
        with suppress(OSError):  # it is there for words alone
            started.keep(folder, unit)
        ready, told = os.pipe()
        try:
            guard = subprocess.Popen(
                python.module(sys.executable, "pdctl.launch.guard", str(folder), str(told)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=python.environment(os.environ, {process.MARK: str(folder)}),
                start_new_session=True,
                pass_fds=(told,),
            )
        finally:
            os.close(output)
        os.close(told)
        self._guards.append(guard)
        try:
            self._hand_over(unit, guard, ready)
        finally:
            os.close(ready)

    def _new_log(self, name: str) -> int:
        log = self.log(name)
        shift(log)
        return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _hand_over(self, unit: Unit, guard: subprocess.Popen[bytes], ready: int) -> None:
        assert guard.stdin is not None
        document = {**asdict(unit), "env": dict(unit.env), "ports": dict(unit.ports)}
        try:
            guard.stdin.write(json.dumps(document).encode())
            guard.stdin.close()
        except BrokenPipeError:
            pass
        readable, _, _ = select.select([ready], [], [], START_S)
        told = os.read(ready, 16) if readable else b""
        if not told:
            message = f"the guard of {unit.name} did not start; its log: {self.log(unit.name)}"
            raise GateError(message, code="PD3018")
        if told != b"0":  # it could be neither watched nor adopted
            raise UnwritableError(self.root / unit.name, OSError(int(told), os.strerror(int(told))))

    def stop(self, names: Sequence[str]) -> tuple[str, ...]:
        """Tell all guards at once, wait for each, then kill whatever is left; the names of which something ran.

        Everything is ended before the first record is written, and no fault keeps another unit from being ended. Raises
        GateError: PD3014 before anything is done, PD3017 for what cannot be killed; UnwritableError (PD3016).
        """
        private.check(self.root, *(self.root / name for name in names))
        if names:
            _LOG.debug("ends %s", ", ".join(names))
        records = {name: self._record_or_none(name) for name in names}
        guards = {name: guard for name in names if (guard := self._guard(name, records[name])) is not None}
        for guard in guards.values():
            process.send(guard, signal.SIGTERM)
            process.send(guard, signal.SIGCONT)
        ends = time.monotonic() + STOP_S
        for guard in guards.values():
            process.await_end(guard, ends - time.monotonic())
        found, stuck = self._sweep(records)
        steps = [partial(self._settle, name) for name in names if name not in stuck]
        try:
            run_all(self.root, [*steps, *(partial(_cannot_end, name, left) for name, left in stuck.items())])
        finally:
            for begun in self._guards:
                begun.poll()
        return tuple(name for name in names if name in guards or name in found)

    def _guard(self, name: str, record: UnitRecord | None) -> Seen | None:
        """The guard that the record names, if it runs."""
        if record is None:
            return None
        seen = process.look_at(record.guard_pid, str(self.root / name))
        return seen if guards(record.claim, process.here(), seen) else None

    def _sweep(self, records: Mapping[str, UnitRecord | None]) -> tuple[set[str], dict[str, list[Seen]]]:
        """Kill what is left of the units: guards that hang, and processes that got away.

        The units of which something was, and what is left of those that cannot be ended.
        """
        found: set[str] = set()
        places = {Path(record.cgroup) for record in records.values() if record and record.cgroup}
        ends = time.monotonic() + STOP_S
        # twice: a process shows no environment for the moment in which it becomes another program
        while left := self._left(records) or self._left(records):
            found |= set(left)
            for name, some in left.items():
                places |= _kill(some, self._tag(name))
            if time.monotonic() > ends:
                break
            process.await_end(next(iter(left.values()))[0], 0.2)
        tags = {self._tag(name) for name in records}
        for place in places:
            if place.name in tags:
                cgroup.remove(place)
        return found, left

    def _left(self, records: Mapping[str, UnitRecord | None]) -> dict[str, list[Seen]]:
        """Processes of the units that run, their guards among them; units of which nothing does are left out."""
        here, rows = process.here(), process.table()
        left = {}
        for name, record in records.items():
            claim = record.claim if record else None
            left[name] = [one for one in process.seen(rows, str(self.root / name)) if ours(claim, here, one).ours]
        return {name: some for name, some in left.items() if some}

    def _tag(self, name: str) -> str | None:
        return cgroup.name_of(str(self.root / name))

    def _settle(self, name: str) -> None:
        """Nothing of the unit runs any more: let its record say so, whatever it said."""
        path = self.root / name / "state.json"
        record = self._record_or_none(name)
        if record is None:
            path.unlink(missing_ok=True)
        elif record.state not in _ENDED:
            write(path, msgspec.structs.replace(record, state="stopped", pid=None, started=None, since=time.time()))

    def status(self, name: str) -> UnitStatus:
        """What is true of the unit now. Raises StateError (PD3005), GateError (PD3014)."""
        private.check(self.root, self.root / name)
        record = read(self.root / name / "state.json", UnitRecord)
        if record is None:
            return UnitStatus(name, "absent")
        believed = record.state in _ENDED or self._guard(name, record) is not None
        state: State = record.state if believed else "lost"  # type: ignore[assignment]
        last_exit = str(record.last_exit) if record.last_exit else None
        pid = record.pid if state in ("running", "stopping") else None
        return UnitStatus(
            name,
            state,
            pid,
            record.restarts,
            last_exit,
            record.since,
            record.digest,
            contained=record.cgroup is not None,
            frozen=next((one for one in (pid, record.guard_pid) if pid and process.is_frozen(one)), None),
        )

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
        """Units that have a folder here; what else lies there is none."""
        return (
            tuple(sorted(entry.name for entry in self.root.iterdir() if entry.is_dir())) if self.root.is_dir() else ()
        )

    def _record_or_none(self, name: str) -> UnitRecord | None:
        """For stopping, a damaged record is as good as none: the mark finds the processes."""
        try:
            return read(self.root / name / "state.json", UnitRecord)
        except StateError:
            return None


_ENDED = ("stopped", "failed")


def _cannot_end(name: str, left: Sequence[Seen]) -> None:
    pids = ", ".join(str(item.pid) for item in left)
    raise GateError(f"{name}: cannot be killed: pid {pids}", code="PD3017")


def _kill(left: Sequence[Seen], tag: str | None) -> set[Path]:
    """One by one, the guard among them, and at once what is in the cgroup of that name, whose folders are returned."""
    places = {place for item in left if tag and (place := cgroup.found(item.pid, tag))}
    for item in left:
        process.send(item, signal.SIGKILL)
    for place in places:
        cgroup.kill(place)
    return places
