"""When is a leg's write over? After a failure the fabric may go on writing; it must prove that it does not."""

import math
import time
from collections.abc import Callable
from typing import Final

from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.leg import Leg
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.machine.recent import Recent

PROVE_EVERY_S: Final = 1.0
UNPROVEN_S: Final = 60.0
"""How long a proof is sought for a peer that is gone."""


class Settlement:
    """Settles legs whose jobs have ended. Loop thread only. `drop`: the leg need not be known any more."""

    def __init__(self, loop: Loop, fabric: Fabric, name: str, drop: Callable[[Leg], None]) -> None:
        self._loop, self._fabric, self._drop = loop, fabric, drop
        self._workers = Workers(f"pdctl-settle-{name}", 1)
        self._unproven = Recent(math.inf)

    def settle(self, leg: Leg) -> None:
        """At once where nothing can be under way, else when the fabric has proven it."""
        if not leg.may_write:
            self._drop(leg)
            leg.settle()
        elif leg.link.channel.over and time.monotonic() - leg.ended_at > UNPROVEN_S:
            self._unproven.put(leg.room, leg.failure or Failure("PD4011", "unproven", "decode"))
            self._drop(leg)
        else:
            self._workers.submit(lambda: self._prove(leg))
        leg.released()

    def unproven(self, room: int) -> bool:
        """Whether the fabric may still be writing this room: it never proved otherwise, and the peer is gone."""
        return self._unproven.get(room) is not None

    def close(self) -> None:
        """Seek no more proofs."""
        self._workers.close(5.0)

    def _prove(self, leg: Leg) -> None:
        """On a worker."""
        peer = leg.link.peer
        leg.may_write = peer is not None and not self._fabric.settle(peer)
        if leg.may_write:
            self._loop.call(self._loop.later, PROVE_EVERY_S, self.settle, leg)
        else:
            self._loop.call(self.settle, leg)
