"""Runs the phases: takes the fleet's lock, adopts what runs as planned, and leaves nothing behind when it fails."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from pdctl import __version__
from pdctl.engines.refusals import raise_all
from pdctl.errors import GateError, Interrupted
from pdctl.fleet.keys import key_in
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.base import Launcher
from pdctl.launch.local import LocalLauncher
from pdctl.launch.record import UnwritableError
from pdctl.launch.state import ROUTER, UP, FleetFolder, FleetState, PhaseEntry, UnitEntry
from pdctl.launch.steps import run_all
from pdctl.routers import Backend
from pdctl.up.alike import Doubtful
from pdctl.up.context import Bringup, Events, Silent
from pdctl.up.converge import Decision, decide, is_whole
from pdctl.up.drain import DRAIN_S, Enlisted, enlist
from pdctl.up.nodes import unstartable
from pdctl.up.own import require_own
from pdctl.up.phases import PHASES, Phase
from pdctl.up.signals import interruptible, undisturbed
from pdctl.up.takedown import may_run, take_down

BACK_S = 10.0
"""How long a router may take to serve again with what was drained in vain."""


def bring_up(
    loaded: LoadedFleet,
    *,
    skip: Collection[str] = (),
    keep: bool = False,
    events: Events | None = None,
    phases: Sequence[Phase] = PHASES,
    again: Mapping[str, str] | None = None,
    approve: Callable[[Decision], None] = lambda decision: None,
    drain_s: float = DRAIN_S,
) -> FleetState:
    """Bring the fleet to what its file says, and return its state. One that is up and as it should be is not touched.

    again: units to restart although nothing differs, and why. approve: looks at the decision, and may raise, before
    anything is touched. drain_s: how long requests under way may take before what serves them is ended.

    Raises InputError (PD3119) for a fleet that is somebody else's, GateError (PD3003) if another file's fleet of this
    name is up, whatever a phase raises, and Interrupted (PD3001) on Ctrl-C, SIGTERM or SIGHUP. In the last two cases
    everything is taken down first, unless `keep`; of a fleet that was up only what was started anew, and what still
    serves is left alone.
    """
    require_own(loaded, "up")
    raise_all(list(unstartable(loaded)))
    folder, watch = FleetFolder(loaded.fleet.name), events or Silent()
    launcher = LocalLauncher(folder.units)
    with folder.lock("up"), interruptible():
        before = folder.read()
        decision = decide(loaded, folder, launcher, before, again)
        approve(decision)
        if before is not None and decision.unchanged and is_whole(decision):
            watch.decided(decision.steps)
            return before
        run = _prepare(loaded, launcher, decision, watch, drain_s)
        state = FleetState(
            fleet=loaded.fleet.name,
            file=str(loaded.path.resolve()),
            digest=loaded.digest,
            pdctl=__version__,
            phase=phases[0].name,
            since=time.time(),
            url=run.plan.url,
            units=entries_now(run),
            converging=decision.serving,
        )
        try:
            for phase in phases:
                state = _run_phase(phase, run, state, folder, phase.name in skip)
            state = replace(state, phase=UP, since=time.time(), units=entries_now(run), converging=False)
            folder.write(state)
        except BaseException as error:
            left = "what became of it could not be recorded"
            with undisturbed():
                try:
                    left = _give_up(run, state, folder, decision, keep)
                except UnwritableError:
                    pass  # what failed matters more
                except GateError as later:  # it is not to hide behind this, nor this behind it
                    watch.cleaning(f"{later.code} {later.message}")
            if isinstance(error, KeyboardInterrupt):
                raise Interrupted(f"interrupted; {left}") from error
            raise
    return state


def _prepare(loaded: LoadedFleet, launcher: Launcher, decision: Decision, watch: Events, drain_s: float) -> Bringup:
    """A run in which units that are as planned are adopted; what serves leaves in its phase, all else is ended now."""
    if decision.serving:
        watch.decided(decision.steps)
    leaving, before = decision.leaving, decision.before
    leftover = [name for name in launcher.known() if name not in decision.running and name not in leaving]
    if any(may_run(launcher, name) for name in leftover):
        watch.cleaning("ending what an earlier run left")
    launcher.stop(leftover)
    return Bringup(
        loaded,
        decision.plan,
        launcher,
        watch,
        decision.running,
        leaving=leaving,
        verified=decision.serving and before is not None and before.phase == UP,
        serving_at=before.url if decision.serving and before is not None else None,
        drain_s=drain_s,
    )


def entries_now(run: Bringup) -> tuple[UnitEntry, ...]:
    """The units as they are wanted, or still as they were where their turn has not come; and those yet to go."""
    still = {name: entry for name, entry in run.leaving.items() if name not in run.ended}
    wanted = [still.pop(entry.name, entry) for entry in run.plan.entries()]
    return (*wanted, *still.values())


def _run_phase(phase: Phase, run: Bringup, state: FleetState, folder: FleetFolder, skipped: bool) -> FleetState:
    """Run one phase and record how it went, whatever happens."""
    state = replace(state, phase=phase.name, since=time.time(), units=entries_now(run))
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


def _give_up(run: Bringup, state: FleetState, folder: FleetFolder, decision: Decision, keep: bool) -> str:
    """After a failure: leave what served before, end what this run started unless `keep`; says what became of it."""
    still = {name: entry for name, entry in run.leaving.items() if name not in run.ended}
    if not decision.serving or not (run.running or still):
        if not keep:
            _undo(run, folder)
        return "what had been started " + ("still runs" if keep else "was taken down")
    touched = bool(run.begun or run.ended)
    up = replace(state, phase=UP, since=time.time(), units=entries_now(run), converging=False)
    if decision.before is not None and not touched:
        up = decision.before
    steps = (
        lambda: run.launcher.stop([] if keep else sorted(run.begun)),
        lambda: _back_in_traffic(run, still),
        lambda: folder.write(up),
    )
    run_all(folder.path, steps)
    return "what was not restarted yet still serves" if touched else "nothing was changed"


def _back_in_traffic(run: Bringup, still: Mapping[str, UnitEntry]) -> None:
    """What was drained and not ended: it is to serve again as far as it can."""
    if run.serving_at is None or ROUTER in run.begun or ROUTER in run.ended:
        return
    drained = {
        name: Enlisted(entry.role, Backend(entry.url, entry.ports.get("bootstrap"), key_in(entry.key_env)))
        for name, entry in still.items()
        if name in run.drained
    }
    with suppress(GateError):
        enlist(run, run.serving_at, drained, BACK_S)


def _undo(run: Bringup, folder: FleetFolder) -> None:
    """Take down all of a fleet that did not come up."""
    if any(may_run(run.launcher, name) for name in run.launcher.known()):
        run.events.cleaning(f"taking {folder.name} down again")
    take_down(folder, run.launcher)
