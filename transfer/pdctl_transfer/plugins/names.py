"""Names that an engine's plugin and whoever starts the engine must spell alike. Light: imported at start-up."""

from typing import Final, Literal

Core = Literal["engine", "pdctl", "auto"]
"""Who carries the state: the engine's own transfer, the transfer core, or the core where the engine's is worse."""

CORE: Final = "PDCTL_CORE"
OPTIONS: Final = "PDCTL_CORE_OPTIONS"
SECRET: Final = "PDCTL_TRANSFER_SECRET"
