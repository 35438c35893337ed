"""The running fleet that is meant: ours by its name, somebody else's by its file; two of one name stay two."""

from typing import TYPE_CHECKING

from pdctl.engines.live import Running
from pdctl.running.fleet import RunningFleet

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet


def find(name: str, external: str | None = None) -> RunningFleet:
    """The fleet of ours of this name; `external`: the file of one that somebody else started.

    Raises FleetFileError; StateError (PD3005), GateError (PD3014).
    """
    if external is None:
        from pdctl.running.local import by_name

        return by_name(name)
    from pdctl.fleet import load_fleet
    from pdctl.running.external import by_file

    return by_file(load_fleet(external))


def members_of(loaded: "LoadedFleet") -> tuple[Running, ...]:
    """The engines that a fleet file is about, as far as it is known where they are."""
    if loaded.fleet.external:
        from pdctl.running.external import engines_of

        return tuple(engines_of(loaded))
    from pdctl.running import local

    return tuple(local.engines_of(loaded))
