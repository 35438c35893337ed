"""Telemetry of one peer."""

from typing import Any


class Telemetry:
    """Counters and events."""

    def __init__(self, side: str, rank: str, events: int) -> None:
        self.side, self.rank = side, rank

    def handshake(self, peer: str, seconds: float) -> None:
        """A link became ready."""

    def wrote(self, leg: Any) -> None:
        """A leg's write ended."""

    def ended(self, room: int, failure: Any, reached: Any) -> None:
        """A request ended."""
