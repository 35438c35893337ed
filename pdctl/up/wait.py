"""Waiting for units: until they answer, or until it is clear that they will not."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdctl.engines.http import answers
from pdctl.errors import GateError
from pdctl.launch.base import Launcher, Unit
from pdctl.redact import clean, hide, plain
from pdctl.up.answered import note_answer
from pdctl.up.context import Bringup
from pdctl.up.parallel import each

POLL_S = 0.1
ANSWER_S = 1.0
"""For one answer of a starting unit, which is asked again."""
TAIL_BYTES = 8192


@dataclass(frozen=True)
class Gate:
    """When a unit counts as ready: `url` answers 200 within `deadline_s`."""

    unit: Unit
    url: str
    deadline_s: float
    stage: Callable[[str], str | None] = lambda log: None
    key: str | None = field(default=None, repr=False)


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
    """Until every gate is open. Raises GateError: PD3006 a unit ended, PD3007 it took too long."""
    began = time.monotonic()
    restarts = {gate.unit.name: run.launcher.status(gate.unit.name).restarts for gate in gates}
    waiting = list(gates)
    while waiting:
        ready = each(lambda gate: answers(gate.url, _patience(gate, began), key=gate.key), waiting)
        for gate, is_ready in zip(waiting, ready, strict=True):
            if is_ready:
                note_answer(run.launcher, run.launcher.status(gate.unit.name))
        waiting = [gate for gate, is_ready in zip(waiting, ready, strict=True) if not is_ready]
        for gate in waiting:
            _check_alive(run.launcher, gate.unit, restarts)
            if time.monotonic() - began > gate.deadline_s:
                raise _too_late(run.launcher, gate)
        if waiting:
            run.events.progress(_what_they_do(run.launcher, waiting))
            time.sleep(POLL_S)


def _patience(gate: Gate, began: float) -> float:
    """Seconds for one answer: no more than the gate has left, and enough to be asked once more at its end."""
    return min(ANSWER_S, max(began + gate.deadline_s - time.monotonic(), POLL_S))


def _check_alive(launcher: Launcher, unit: Unit, restarts: Mapping[str, int]) -> None:
    status = launcher.status(unit.name)
    if status.state == "running" and status.restarts == restarts[unit.name]:
        return
    how = status.last_exit or status.state
    message = f"{unit.name} ended before it was ready: {how}\n{excerpt(launcher.log(unit.name))}"
    raise GateError(message, code="PD3006", hint=f"its whole log: {launcher.log(unit.name)}")


def _too_late(launcher: Launcher, gate: Gate) -> GateError:
    log = launcher.log(gate.unit.name)
    message = f"{gate.unit.name} does not answer {gate.url} after {gate.deadline_s:.0f} s\n{excerpt(log)}"
    return GateError(message, code="PD3007", hint=f"its whole log: {log}")


def _what_they_do(launcher: Launcher, waiting: Sequence[Gate]) -> str:
    said = []
    for gate in waiting[:3]:
        stage = gate.stage(tail(launcher.log(gate.unit.name))) or "starting"
        said.append(f"{gate.unit.name} {stage}")
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
