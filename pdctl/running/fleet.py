"""What a running fleet is to those who look at it."""

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from pdctl.engines.live import Running
from pdctl.launch.state import ROUTER, FleetState

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet

EXTERNAL = "external"
"""The launcher of a fleet that somebody else started; in `status` also its phase, for nobody here knows another."""


class RunningFleet(Struct, frozen=True):
    """A fleet with its members: the engines in the file's order, then the router where there is one."""

    name: str
    launcher: Literal["local", "external"]
    members: tuple[Running, ...] = ()
    state: FleetState | None = None
    """What the last `up` or `down` left of a fleet of ours; None where it never was up."""
    loaded: "LoadedFleet | None" = None
    """The file that describes a fleet of somebody else's."""

    @property
    def router(self) -> Running | None:
        """The router, where there is one."""
        return next((one for one in self.members if one.role == ROUTER), None)

    def member(self, name: str) -> Running | None:
        """The member of this name."""
        return next((one for one in self.members if one.name == name), None)
