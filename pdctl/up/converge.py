"""From what runs to what the fleet file wants: looks at the units, decides with `diff`, and touches nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pdctl.engines.http import Unreachable, answers, request
from pdctl.errors import GateError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.base import Launcher
from pdctl.launch.local import LocalLauncher
from pdctl.launch.record import StateError
from pdctl.launch.state import ROUTER, UP, FleetFolder, FleetState, UnitEntry
from pdctl.up.answered import had_answered
from pdctl.up.diff import Running, Step, named, steps
from pdctl.up.keys import Keys, known_keys, read_keys
from pdctl.up.parallel import each
from pdctl.up.plan import FleetPlan, make_plan
from pdctl.up.workers import Workers, absent

PATIENCE_S: Final = 5.0
"""How long an engine that answered before may be silent before it is taken for hung."""


@dataclass(frozen=True)
class Decision:
    """What is to become of a fleet."""

    plan: FleetPlan
    steps: tuple[Step, ...]
    before: FleetState | None
    serving: bool
    """It was up, and something of it runs: what serves is drained before it is ended, and left alone by a failure."""

    @property
    def running(self) -> frozenset[str]:
        """Units that stay as they are."""
        return named(self.steps, "keep")

    @property
    def leaving(self) -> dict[str, UnitEntry]:
        """Units that serve now and are ended in their phase."""
        ended = named(self.steps, "restart", "stop") if self.serving else frozenset()
        return {entry.name: entry for entry in (self.before.units if self.before else ()) if entry.name in ended}

    @property
    def unchanged(self) -> bool:
        """The fleet is up, just as the file wants it."""
        return (
            self.serving
            and self.before is not None
            and self.before.phase == UP
            and self.running >= {step.unit for step in self.steps}
        )


def decide(
    loaded: LoadedFleet,
    folder: FleetFolder,
    launcher: Launcher,
    before: FleetState | None,
    again: Mapping[str, str] | None = None,
    secret: Callable[[], str] | None = None,
    keys: Keys | None = None,
) -> Decision:
    """Look, and decide. again: units to restart although nothing differs, and why; None: those that hang.

    Raises GateError (PD3003) where another file's fleet of this name is up, and what `make_plan` raises.
    """
    running = [name for name in launcher.known() if runs(launcher, name)]
    entries = {entry.name: entry for entry in (before.units if before else ())}
    serving = before is not None and (before.phase == UP or before.converging) and bool(set(running) & set(entries))
    if serving and before is not None:
        refuse_another(before, loaded)
    recorded = {name: entry.ports for name, entry in entries.items()}
    plan = make_plan(
        loaded, recorded, frozenset(running), secret or folder.secret, keys or read_keys(loaded, folder.control_key)
    )
    have = [Running(name, launcher.status(name).digest, launcher.started(name)) for name in running]
    reasons = again if again is not None else hung(launcher, [entries[n] for n in running if n in entries])
    ended = {name: _how(launcher, name) for name in entries if name not in running}
    found = steps(have, plan.units, reasons if serving else {}, ended)
    return Decision(plan, tuple(found), before, serving)


def preview(loaded: LoadedFleet) -> Decision:
    """What `up` would do now; nothing is written."""
    folder = FleetFolder(loaded.fleet.name)
    keys = known_keys(loaded, folder.known_control_key)
    return decide(loaded, folder, LocalLauncher(folder.units), folder.read(), secret=folder.known_secret, keys=keys)


def runs(launcher: Launcher, name: str) -> bool:
    """Whether the unit runs, as far as its record can be believed."""
    try:
        return launcher.status(name).state == "running"
    except StateError:
        return False


def refuse_another(before: FleetState, loaded: LoadedFleet) -> None:
    """Raises GateError (PD3003) where the fleet that is up came from another file that is still there."""
    mine, theirs = loaded.path.resolve(), Path(before.file)
    if mine != theirs and theirs.exists():
        message = f"{before.fleet} is already up at {before.url}, from {theirs}"
        hint = f"give that file to change it, `pdctl down {before.fleet}` first, or give this fleet another name"
        raise GateError(message, code="PD3003", hint=hint)


def hung(launcher: Launcher, entries: Sequence[UnitEntry], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Units that answered before and do not now, and go on not to. A router that says 503 misses engines."""
    ends = time.monotonic() + patience_s
    silent = [one for one in entries if had_answered(launcher, one.name)]
    while True:
        well = each(_lives, silent)
        silent = [one for one, lives in zip(silent, well, strict=True) if not lives]
        if not silent or time.monotonic() > ends:
            return {one.name: "it answered before, and does not now" for one in silent}
        time.sleep(0.2)


def _lives(entry: UnitEntry) -> bool:
    if entry.role != ROUTER:
        return answers(entry.url + entry.ready_path)
    try:
        return bool(request(entry.url + entry.ready_path, deadline_s=1.0))
    except Unreachable:
        return False


def is_whole(decision: Decision) -> bool:
    """Whether every unit answers now, and the router gives requests to every engine."""
    urls = [one.instance.url + one.engine.readiness.path for one in decision.plan.engines]
    entries = {entry.name: entry for entry in decision.plan.entries()}
    router = entries[ROUTER]
    if not all(each(answers, [*urls, router.url + router.ready_path])):
        return False
    listed = Workers(decision.plan.url, decision.plan.control_key).listed()
    sides = [one.instance.url for one in decision.plan.engines if one.instance.role in ("prefill", "decode")]
    return listed is None or not absent(listed, sides)


def _how(launcher: Launcher, name: str) -> str:
    """Why a unit of the fleet does not run."""
    try:
        status = launcher.status(name)
    except StateError:
        return "its record is damaged"
    return f"{status.state}" + (f": {status.last_exit}" if status.last_exit else "")
