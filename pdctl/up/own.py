"""Only what pdctl starts does it start, change and end."""

from contextlib import suppress
from typing import Final

from pdctl.errors import InputError, PdctlError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.launch.state import DOWN, FleetFolder

_WORDS: Final = {"up": "bring up", "restart": "restart", "down": "take down"}


def require_own(loaded: LoadedFleet, command: str) -> None:
    """Raises InputError (PD3119) for a fleet that somebody else starts."""
    if loaded.fleet.external:
        refuse_external(loaded.fleet.name, command, loaded.where("launcher"))


def refuse_external(fleet: str, command: str, where: str) -> None:
    """Raises InputError (PD3119): the fleet of this file is somebody else's. One of the same name may be ours."""
    hint = "use what started it; `pdctl status` and `pdctl check --live` look at it"
    with suppress(PdctlError):
        state = FleetFolder(fleet).read()
        if state is not None and state.phase != DOWN:
            hint = f"pdctl started another fleet of this name, from {state.file}"
            hint += f": `pdctl down {fleet}` ends that one" if command == "down" else ""
    message = f"{fleet} is an external fleet: pdctl does not {_WORDS[command]} what it did not start"
    raise InputError(message, where=where, code="PD3119", hint=hint)
