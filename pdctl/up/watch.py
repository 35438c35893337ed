"""Whoever waits in a bring-up looks at all units meanwhile, not only at the one that it waits for."""

from pdctl.errors import GateError
from pdctl.up.context import Bringup

_GONE = {
    "lost": "its guard was killed",
    "failed": "it ended too often and was given up",
    "stopping": "it was told to end",
    "stopped": "it was told to end",
    "absent": "its record is gone",
}


def watch(run: Bringup) -> list[str]:
    """Look at the units that were ready; what to say of those that a signal has stopped.

    Raises GateError (PD3019) for one that is gone and will not come back. One that its guard starts again is no fault.
    """
    halted = []
    for name in run.opened:
        status = run.launcher.status(name)
        if status.state in _GONE:
            log = run.launcher.log(name)
            how = f" ({status.last_exit})" if status.last_exit and status.state == "failed" else ""
            message = f"{name} was ready and is gone: {_GONE[status.state]}{how}"
            raise GateError(message, code="PD3019", hint=f"its log: {log}")
        if status.halt:
            halted.append(status.halt)
    return halted


def watch_and_say(run: Bringup) -> None:
    """The same for phases that say nothing else while they wait. Raises GateError (PD3019)."""
    halted = watch(run)
    if halted:
        run.events.progress("; ".join(halted))


def restarted(run: Bringup) -> list[str]:
    """Units that were ready, and that their guards have started anew since: they must answer again."""
    return [name for name, count in run.opened.items() if run.launcher.status(name).restarts != count]
