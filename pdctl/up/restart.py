"""Restarting units of a fleet that is up, by the machinery of `up`: drained first, started in order, proved again."""

from collections.abc import Collection, Sequence

from pdctl.errors import GateError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.state import DOWN, FleetFolder, FleetState
from pdctl.running.names import refuse_unknown
from pdctl.up.context import Events
from pdctl.up.converge import Decision
from pdctl.up.drain import DRAIN_S
from pdctl.up.own import require_own
from pdctl.up.runner import bring_up

ASKED = "as asked"


def restart(
    loaded: LoadedFleet,
    units: Sequence[str] = (),
    events: Events | None = None,
    drain_s: float = DRAIN_S,
    skip: Collection[str] = (),
) -> FleetState:
    """Restart these units, or all.

    Raises InputError: PD3119 for an external fleet, PD3015 for a unit that the fleet does not have; GateError: PD3021
    the fleet file has changed, PD3013 the fleet is not up; and what `bring_up` raises.
    """
    require_own(loaded, "restart")
    state = FleetFolder(loaded.fleet.name).read()
    known = [entry.name for entry in state.units] if state is not None and state.phase != DOWN else []
    if not known:
        message, hint = f"{loaded.fleet.name} is not up", f"`pdctl up {loaded.path}` brings it up"
        raise GateError(message, code="PD3013", hint=hint)
    for unit in units:
        refuse_unknown(loaded.fleet.name, unit, known)
    again = dict.fromkeys(units or known, ASKED)
    return bring_up(loaded, skip=skip, events=events, again=again, approve=_as_it_runs, drain_s=drain_s)


def _as_it_runs(decision: Decision) -> None:
    """A restart changes nothing: what is wanted must be what runs."""
    other = [
        step
        for step in decision.steps
        if step.action == "stop" or step.why == ("new",) or _differs(step.action, step.why)
    ]
    if other:
        what = "\n".join(f"  {step.unit}: {', '.join(step.why)}" for step in other[:8])
        hint = "`pdctl up` restarts what differs; `pdctl up --plan` shows it first"
        raise GateError(f"the fleet file has changed since the fleet was brought up\n{what}", code="PD3021", hint=hint)


def _differs(action: str, why: tuple[str, ...]) -> bool:
    return action == "restart" and why != (ASKED,)
