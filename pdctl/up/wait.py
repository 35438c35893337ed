"""Waiting for units: until they answer, or until it is clear that they will not."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdctl.engines.http import answers
from pdctl.errors import GateError
from pdctl.launch.base import Launcher
from pdctl.redact import clean, hide, plain
from pdctl.up.answered import note_answer
from pdctl.up.context import Bringup, Gate
from pdctl.up.parallel import each
from pdctl.up.watch import restarted, watch

POLL_S = 0.1
ANSWER_S = 1.0
"""For one answer of a starting unit, which is asked again."""
TAIL_BYTES = 8192


def start_and_wait(run: Bringup, gates: Sequence[Gate]) -> str:
    """Start the units that do not run yet, wait for all; say how many were started and adopted."""
    fresh = [gate.unit for gate in gates if gate.unit.name not in run.running]
    for unit in fresh:
        run.begun.add(unit.name)
        run.launcher.start(unit)
    wait_ready(run, gates)
    adopted = len(gates) - len(fresh)
    ports = ", ".join(f"{gate.unit.name} :{gate.unit.ports['http']}" for gate in gates[:4])
    more = f" and {len(gates) - 4} more" if len(gates) > 4 else ""
    return f"{ports}{more}" + (f" ({adopted} adopted)" if adopted else "")


def wait_ready(run: Bringup, gates: Sequence[Gate]) -> None:
    """Until every gate is open, and open again where a unit of an earlier gate was restarted meanwhile.

    Raises GateError: PD3006 a unit ended, PD3007 it took too long, PD3019 one that was ready is gone.
    """
    run.gates.update({gate.unit.name: gate for gate in gates})
    waiting = {gate.unit.name: _Wait.begin(run.launcher, gate) for gate in gates}
    while waiting:
        ready = each(lambda one: answers(one.gate.url, one.patience(), key=one.gate.key), list(waiting.values()))
        for one, is_ready in zip(list(waiting.values()), ready, strict=True):
            if is_ready:
                _open(run, waiting.pop(one.gate.unit.name))
        for one in waiting.values():
            _check_alive(run.launcher, one)
            if one.waited() > one.gate.deadline_s:
                raise _too_late(run.launcher, one.gate)
        halted = watch(run)
        for name in restarted(run):
            run.events.progress(f"{name} ended ({run.launcher.status(name).last_exit}) and is started again")
            del run.opened[name]
            waiting[name] = _Wait.begin(run.launcher, run.gates[name])
        if waiting:
            doing = _what_they_do(run.launcher, [one.gate for one in waiting.values()])
            run.events.progress("; ".join([doing, *halted]))
            time.sleep(POLL_S)


@dataclass(frozen=True)
class _Wait:
    """A gate that is waited for: since when, and how often its unit had been restarted by then."""

    gate: Gate
    began: float
    restarts: int

    @classmethod
    def begin(cls, launcher: Launcher, gate: Gate) -> "_Wait":
        return cls(gate, time.monotonic(), launcher.status(gate.unit.name).restarts)

    def waited(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def patience(self) -> float:
        """Seconds for one answer: no more than the gate has left, and enough to be asked once more at its end."""
        return min(ANSWER_S, max(self.gate.deadline_s - self.waited(), POLL_S))


def _open(run: Bringup, one: _Wait) -> None:
    """It answers. A restart since it was begun with counts from here on."""
    status = run.launcher.status(one.gate.unit.name)
    note_answer(run.launcher, status)
    run.opened[status.name] = one.restarts


def _check_alive(launcher: Launcher, one: _Wait) -> None:
    name = one.gate.unit.name
    status = launcher.status(name)
    if status.state == "running" and status.restarts == one.restarts:
        return
    how = status.last_exit or status.state
    message = f"{name} ended before it was ready: {how}\n{excerpt(launcher.log(name))}"
    raise GateError(message, code="PD3006", hint=f"its whole log: {launcher.log(name)}")


def _too_late(launcher: Launcher, gate: Gate) -> GateError:
    log = launcher.log(gate.unit.name)
    why = launcher.status(gate.unit.name).halt
    said = f": {why}" if why else ""
    message = f"{gate.unit.name} does not answer {gate.url} after {gate.deadline_s:.0f} s{said}\n{excerpt(log)}"
    return GateError(message, code="PD3007", hint=f"its whole log: {log}")


def _what_they_do(launcher: Launcher, waiting: Sequence[Gate]) -> str:
    said = []
    for gate in waiting[:3]:
        stage = gate.stage(tail(launcher.log(gate.unit.name))) or "starting"
        said.append(launcher.status(gate.unit.name).halt or f"{gate.unit.name} {stage}")
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return ", ".join(said) + more


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The end of a log; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - size, 0))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def excerpt(path: Path, lines: int = 6) -> str:
    """The last lines of a log, set off by a bar, for an error message. Engines print their arguments there."""
    last = [clean(hide(plain(line)), 200) for line in tail(path).splitlines() if line.strip()][-lines:]
    return "\n".join(f"    | {line}" for line in last) or "    | (its log is empty)"
