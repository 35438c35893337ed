"""A request on the receiving side: its handle, its state, and the prefill ranks that write it."""

import os
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.cost import Way
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.drive.client import Address
from pdctl_transfer.session.life import Failure, Handle
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.staging import Order
from pdctl_transfer.session.timers import Timer

if TYPE_CHECKING:
    from pdctl_transfer.session.decode import DecodePeer


class ReceiveHandle(Handle):
    """A request on the receiving side."""

    def __init__(self, peer: "DecodePeer", room: int) -> None:
        super().__init__(room, lambda failure: peer.loop.call(peer.fail_room, self, failure), "decode")
        self._metadata: bytes = b""

    @property
    def metadata(self) -> bytes:
        """What prefill sent along; complete once confirmed, empty before."""
        return self._metadata if self.state == "confirmed" else b""


class Source:
    """One prefill rank that a request asked."""

    def __init__(self, link: Link, part: Part | None = None) -> None:
        self.link = link
        self.part = part
        self.asked = self.ready = self.started = self.done = False
        self.settled = True
        self.ways: dict[str, Way] = {}
        self.order: Order | None = None
        self.sums: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """It has written everything, and what was staged is in place."""
        return self.done and (self.order is None or self.order.complete)


class Request:
    """One request on the receiving side."""

    def __init__(self, handle: ReceiveHandle, registry: Address, indices: dict[str, NDArray[np.int64]]) -> None:
        self.handle, self.registry, self.indices = handle, registry, indices
        self.room = handle.room
        self.attempt = os.urandom(8).hex()
        self.sources: dict[RankId, Source] = {}
        self.timer: Timer | None = None
        self.missing = ""
        self.verifying = False

    @property
    def key(self) -> tuple[int, str]:
        """What messages call it."""
        return self.room, self.attempt

    @property
    def all_ready(self) -> bool:
        """Every source has the room open."""
        return bool(self.sources) and all(source.ready for source in self.sources.values())

    @property
    def complete(self) -> bool:
        """Everything of every source is in place."""
        return bool(self.sources) and all(source.complete for source in self.sources.values())

    @property
    def settled(self) -> bool:
        """Nothing can land any more, and nothing is being put into place."""
        orders = (source.order for source in self.sources.values())
        idle = all(order is None or order.idle for order in orders)
        return idle and all(source.settled for source in self.sources.values())

    def unsent(self, options: Options) -> Failure:
        """Why it fails if nothing begins to move in time."""
        return Failure("PD4030", f"room {self.room}: nothing was sent in {options.waiting_s:g} s", "prefill")

    def incomplete(self, options: Options) -> Failure:
        """Why it fails if not everything is in place in time."""
        left = ", ".join(str(tuple(rank)) for rank, source in self.sources.items() if not source.complete)
        cause = f"room {self.room}: not complete in {options.transfer_s:g} s, waiting for prefill {left}"
        return Failure("PD4031", cause, "prefill")
