"""Runs the phases: takes the fleet's lock, adopts what runs as planned, and leaves nothing behind when it fails."""

import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from msgspec.structs import replace

from pdctl import __version__
from pdctl.errors import GateError, Interrupted
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.base import Launcher
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import UP, FleetFolder, FleetState, PhaseEntry, UnwritableError
from pdctl.up.alike import Doubtful
from pdctl.up.context import Bringup, Events, Silent
from pdctl.up.phases import PHASES, Phase
from pdctl.up.plan import make_plan
from pdctl.up.signals import interruptible, undisturbed
from pdctl.up.takedown import may_run, take_down


def bring_up(
    loaded: LoadedFleet,
    *,
    skip: Collection[str] = (),
    keep: bool = False,
    events: Events | None = None,
    phases: Sequence[Phase] = PHASES,
) -> FleetState:
    """Bring the fleet up and return its state.

    Raises GateError (PD3003) if it is up already, whatever a phase raises, and Interrupted (PD3001) on Ctrl-C, SIGTERM
    or SIGHUP. In the last two cases everything is taken down first, unless `keep`; of a fleet that was up and only lost
    a unit, what still runs is left running.
    """
    folder, watch = FleetFolder(loaded.fleet.name), events or Silent()
    launcher = LocalLauncher(folder.units)
    with folder.lock("up"), interruptible():
        before = folder.read()
        run = _prepare(loaded, folder, launcher, before, watch)
        state = FleetState(
            fleet=loaded.fleet.name,
            file=str(loaded.path.resolve()),
            digest=loaded.digest,
            pdctl=__version__,
            phase=phases[0].name,
            since=time.time(),
            url=run.plan.url,
            units=run.plan.entries(),
        )
        try:
            for phase in phases:
                state = _run_phase(phase, run, state, folder, phase.name in skip)
            state = replace(state, phase=UP, since=time.time())
            folder.write(state)
        except BaseException as error:
            with undisturbed(), suppress(UnwritableError):  # nor is it to hide behind this
                if before is not None and before.phase == UP and run.running:
                    _give_up_repair(run, state, folder)
                elif not keep:
                    _undo(run, folder)
            if isinstance(error, KeyboardInterrupt):
                left = "still runs" if keep else "was taken down"
                raise Interrupted(f"interrupted; what had been started {left}") from error
            raise
    return state


def _prepare(
    loaded: LoadedFleet, folder: FleetFolder, launcher: Launcher, before: FleetState | None, watch: Events
) -> Bringup:
    """The plan, with running units adopted where they are as planned; all others of an earlier run are ended."""
    running = [name for name in launcher.known() if launcher.status(name).state == "running"]
    entries = {entry.name: entry for entry in (before.units if before else ())}
    if before is not None and before.phase == UP and set(running) & set(entries):
        changed = before.digest != loaded.digest
        if changed or set(entries) <= set(running):
            note = ", and the fleet file has changed since" if changed else ""
            hint = f"`pdctl status {before.fleet}` looks at it, `pdctl down {before.fleet}` takes it down"
            raise GateError(f"{before.fleet} is already up at {before.url}{note}", code="PD3003", hint=hint)
    recorded = {name: entry.ports for name, entry in entries.items()}
    plan = make_plan(loaded, recorded, frozenset(running), folder.secret)
    planned = {unit.name: unit.digest for unit in plan.units}
    adopted = frozenset(name for name in running if launcher.status(name).digest == planned.get(name))
    leftover = [name for name in launcher.known() if name not in adopted]
    if any(may_run(launcher, name) for name in leftover):
        watch.cleaning("ending what an earlier run left")
    launcher.stop(leftover)
    return Bringup(loaded, plan, launcher, watch, adopted)


def _run_phase(phase: Phase, run: Bringup, state: FleetState, folder: FleetFolder, skipped: bool) -> FleetState:
    """Run one phase and record how it went, whatever happens."""
    state = replace(state, phase=phase.name, since=time.time())
    if skipped or not phase.applies(run):
        note = "as asked" if skipped else "nothing to do"
        return _recorded(run, state, folder, PhaseEntry(phase.name, "skipped", 0.0, note))
    folder.write(state)
    run.events.phase_began(phase.name, phase.says)
    began = time.monotonic()
    try:
        note = phase.run(run)
    except BaseException:
        with suppress(UnwritableError):  # what failed matters more than that it cannot be recorded
            _recorded(run, state, folder, PhaseEntry(phase.name, "failed", time.monotonic() - began))
        raise
    outcome = "doubtful" if isinstance(note, Doubtful) else "done"
    return _recorded(run, state, folder, PhaseEntry(phase.name, outcome, time.monotonic() - began, str(note)))


def _recorded(run: Bringup, state: FleetState, folder: FleetFolder, entry: PhaseEntry) -> FleetState:
    state = replace(state, phases=(*state.phases, entry))
    folder.write(state)
    run.events.phase_ended(entry)
    return state


def _undo(run: Bringup, folder: FleetFolder) -> None:
    """Take down all of a fleet that did not come up."""
    if any(may_run(run.launcher, name) for name in run.launcher.known()):
        run.events.cleaning(f"taking {folder.name} down again")
    take_down(folder, run.launcher)


def _give_up_repair(run: Bringup, state: FleetState, folder: FleetFolder) -> None:
    """End only what this run started: a degraded fleet that serves is better than none."""
    run.launcher.stop([unit.name for unit in run.plan.units if unit.name not in run.running])
    folder.write(replace(state, phase=UP, since=time.time()))
