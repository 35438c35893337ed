"""Engines whose connector is fixed at their start: which one all of a fleet's have, decided before anything starts."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import structs

from pdctl.check.fleets import NOWHERE, Elsewhere, fleet_groups
from pdctl.check.groups import Group
from pdctl.check.ways import FIXED, said, way_of_fleet
from pdctl.engines.core import SIDES, all_by_core
from pdctl.errors import InputError
from pdctl_transfer.rules import Finding

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet, Pool


def by_one_way(
    loaded: "LoadedFleet", platform: str | None = None, elsewhere: Elsewhere = NOWHERE
) -> tuple[tuple[Group, ...], tuple[Finding, ...]]:
    """The fleet's groups by the connector that its engines will have, and what there is to say of the choice.

    Raises what `fleet_groups` raises.
    """
    own = tuple(fleet_groups(loaded, platform, elsewhere))
    if not any(pool.core != "engine" for pool in _fixed(loaded)):
        return own, ()
    ours = tuple(fleet_groups(loaded, platform, structs.replace(elsewhere, by_core=True)))
    names = {pool.name for pool in _fixed(loaded)}
    theirs = [group for group in own if group.name in names]
    choice = way_of_fleet(theirs, [group for group in ours if group.name in names])
    if choice is None:
        return own, ()
    return ours if choice.by_core else own, (said(choice, loaded.fleet.name, theirs),)


def starts_with_core(loaded: "LoadedFleet") -> bool:
    """Whether vLLM's engines of this fleet are started with the core's connector, as `check` says.

    Where the model cannot be read here it is as the file says, and `auto` is the engine's own.
    """
    if not any(pool.core != "engine" for pool in _fixed(loaded)):
        return False
    try:
        _, ways = by_one_way(loaded)
    except InputError:
        return all_by_core(loaded.fleet)
    return any(one.code == "PD1057" for one in ways)


def _fixed(loaded: "LoadedFleet") -> Iterator["Pool"]:
    for pool in (pool for role in SIDES for pool in loaded.pools(role)):
        if (pool.engine or loaded.fleet.engine) == FIXED and pool.members:
            yield pool
