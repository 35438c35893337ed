"""What the scheduler needs of a side of a pair: the seam between running requests and moving their state."""

from collections.abc import Callable
from typing import Protocol

from pdctl.engines.reference.request import Request
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.telemetry import Telemetry


class Transfer(Protocol):
    """One request's way to the other side, over all ranks of this engine."""

    def send(self, request: Request) -> None:
        """Prefill: the state and the first token are in place, go."""

    def settled(self) -> bool:
        """Whether every rank has been confirmed; raises TransferError once one has failed."""

    def receive(self, request: Request) -> None:
        """Decode: take over what came with the state; raises TransferError if it is not this request's."""

    def abort(self, reason: str) -> None:
        """Give up; the other side is told."""

    def reusable(self) -> bool:
        """Whether nothing can be written to, or read from, this request's place any more."""


class Link(Protocol):
    """The side of a pair that this engine is."""

    @property
    def fabric(self) -> Fabric:
        """What moves the bytes."""

    @property
    def telemetries(self) -> list[Telemetry]:
        """Figures and events, one for each rank."""

    def open(self, request: Request, wake: Callable[[], None]) -> Transfer:
        """Begin the transfer of a request that has its place; `wake` is called when it has ended."""

    def refuse(self, request: Request, reason: str) -> None:
        """Tell the other side of a request that ended before it had its place."""

    def close(self) -> None:
        """End all transfers and leave."""
