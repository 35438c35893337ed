"""How a pool's engines are told to move state: by whom, over which protocol, within which limits of the library."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pdctl.fleet import LoadedFleet, Pool
from pdctl.fleet.model import Core
from pdctl_transfer.plugins.guard import OFF
from pdctl_transfer.rules import Evidence

STAGING: Final = "SGLANG_DISAGG_STAGING_BUFFER"
TRUE: Final = ("1", "true", "yes", "y", "t", "on")
#: Variables of a pool that say how many blocks at once its transfers may have, and how they are cut.
LIMITS: Final[tuple[str, ...]] = (
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER",
    STAGING,
    "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE",
    "SGLANG_DISAGGREGATION_QUEUE_SIZE",
)


class Moves(Struct, frozen=True):
    """`said`: where `core` stands, one evidence a pool. `protocol` is empty where no fleet file says one."""

    core: Core = "engine"
    protocol: str = ""
    limits: Mapping[str, str] = {}
    off: bool = False
    """The plugin is turned off, so there is no core in these engines."""
    said: tuple[Evidence, ...] = ()

    @property
    def key(self) -> object:
        """What tells groups apart."""
        return self.core, self.protocol, tuple(self.limits.items()), self.off


def moves_of(loaded: LoadedFleet, pool: Pool) -> Moves:
    """What the fleet file says."""
    own = pool.transfer is not None and pool.transfer.core is not None
    key = f"{pool.key}.transfer.core" if own else "transfer.core"
    off = pool.env.get("PDCTL_PLUGIN", "on").strip().lower() in OFF
    said = [Evidence(loaded.source(key), f"core: {pool.core}")]
    said += [Evidence(loaded.where(f"{pool.key}.env.PDCTL_PLUGIN"), "PDCTL_PLUGIN: off")] if off else []
    limits = {name: pool.env[name] for name in LIMITS if name in pool.env}
    return Moves(pool.core, loaded.fleet.transfer.protocol, limits, off, tuple(said))
