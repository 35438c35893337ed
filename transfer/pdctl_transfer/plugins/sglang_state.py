"""What the plugin knows in one process of SGLang."""

from typing import Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.sglang_ways import Ways
from pdctl_transfer.plugins.stages import Stages
from pdctl_transfer.telemetry import Telemetry

EVENTS: Final = 256


class State:
    """Of this process."""

    def __init__(self) -> None:
        self.telemetry = Telemetry("unknown", "0", EVENTS)
        self.manifest: Manifest | None = None
        self.stages = Stages()
        self.refused: dict[str, tuple[float, Refusal]] = {}
        self.early: dict[str, float] = {}
        self.ways = Ways()
        self.obstacle: Refusal | None = None
        """Why this rank has no core."""
        self.core: Telemetry | None = None
        """The core's own telemetry, where there is one."""


state = State()
