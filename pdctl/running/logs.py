"""Where the logs of a running fleet's members are, whoever writes them."""

from collections.abc import Sequence
from pathlib import Path

from pdctl.engines.live import Running
from pdctl.errors import InputError
from pdctl.inputs import read_input
from pdctl.running.fleet import RunningFleet
from pdctl.running.names import refuse_unknown


def logs_of(fleet: RunningFleet, units: Sequence[str]) -> tuple[dict[str, Path], list[InputError]]:
    """The logs of these units, or of all; and of all why some cannot be read, of which the others do not suffer.

    Raises InputError for a unit that was asked for by name: PD3015, PD3120, PD3121, PD0041; and where there is no log.
    """
    for unit in units:
        refuse_unknown(fleet.name, unit, [one.name for one in fleet.members])
    found: dict[str, Path] = {}
    faults: list[InputError] = []
    for one in fleet.members:
        if units and one.name not in units:
            continue
        try:
            found[one.name] = _log(fleet, one, bool(units))
        except InputError as fault:
            faults.append(fault)
    if faults and (units or not found):
        raise faults[0]
    return {name: found[name] for name in units or found}, faults


def _log(fleet: RunningFleet, one: Running, by_name: bool) -> Path:
    if one.log is None:
        hint = f"the fleet file gives it as `log` beside its URL, a file on this machine: {fleet.name} is external"
        raise InputError(f"{one.name}: no log is given", code="PD3120", hint=hint)
    if fleet.launcher == "local":
        if by_name and not one.log.parent.is_dir():
            hint = f"`pdctl status {fleet.name}` says how far `up` is"
            raise InputError(f"{one.name} has not been started yet", code="PD3015", hint=hint)
        return one.log
    try:
        read_input(one.log, 0, code="PD3121")
    except InputError as fault:
        message = f"{one.name}: its log {fault.message}"
        raise InputError(message, where=fault.where, code=fault.code, hint=fault.hint) from None
    return one.log
