"""Lending the receiver's staging area: who gets the next slot, and what happens to what landed in it.

Each source of a request with staged kinds has an *order*: its chunks. A slot is granted for one chunk, comes back when
the chunk was scattered into place, and goes to the order that holds fewest. So memory is bounded, requests share it,
and a slow one keeps at most WINDOW slots. The sources of one request share what there is evenly from the start: their
chunks of one number lie in slots next to each other where that is possible, and are put into place together, which is
cheaper; so one that had to wait would hold up all. Slots of a failed request are kept until its source is settled.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.session.bytes.area import Area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Lot
from pdctl_transfer.session.bytes.packing import Chunk, chunk_bytes
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.workers import Workers

WINDOW: Final = 3
"""Chunks of one source under way at once: one on the wire, one being scattered, one in the control channel."""

HANDS: Final = 2
"""Workers that put chunks into place."""
SHARE_BYTES: Final = 1 << 20
"""Chunks are shared by as many hands as get so much each."""

Column = NDArray[np.int64]


class Order:
    """The staged chunks of one source of one request. Loop thread only."""

    def __init__(
        self,
        group: object,
        chunks: list[tuple[str, Chunk]],
        ids: Mapping[str, Column],
        grant: Callable[[int, int], None],
        done: Callable[[], None],
        siblings: int = 1,
        place: int = 0,
    ) -> None:
        self.group = group
        """Equal for the sources of one request, of which chunks of one number fill the same items."""
        self.chunks, self.ids = chunks, ids
        self.grant, self.done = grant, done
        self.siblings = siblings
        """How many orders the group has, this one included."""
        self.place = place
        """Where it stands among them."""
        self.window = WINDOW
        self.next = 0
        self.wished = 0
        """Slots that it waits for."""
        self.scattered = 0
        self.slots: dict[int, int] = {}
        """Slots by the chunk they are lent for."""
        self.landed: set[int] = set()
        """Chunks that landed and wait to be put into place."""
        self.moving: set[int] = set()
        """Chunks that a worker is putting into place."""
        self.dropped = False
        self.seconds: dict[str, float] = {}
        """Time spent scattering, by kind."""

    @property
    def complete(self) -> bool:
        """Every chunk is in place."""
        return self.scattered == len(self.chunks)

    @property
    def idle(self) -> bool:
        """No chunk is being put into place."""
        return not self.moving

    @property
    def wants(self) -> bool:
        """Whether it can use another slot."""
        left = len(self.chunks) - self.next - self.wished
        return not self.dropped and left > 0 and len(self.slots) + self.wished < self.window


class Placing:
    """Chunks of one number that are being put into place. `left` shares are still under way; loop thread only."""

    def __init__(self, orders: Sequence[Order], number: int, lots: Sequence[Lot]) -> None:
        self.orders, self.number, self.lots = orders, number, lots
        nbytes = sum(chunk_bytes(lot.chunk) for lot in lots)
        self.shares = self.left = max(1, min(HANDS, nbytes // SHARE_BYTES))
        self.seconds = 0.0


class Lender:
    """Lends the slots of an area to orders."""

    def __init__(self, loop: Loop, area: Area, copier: Copier, workers: Workers) -> None:
        self._loop, self._area, self._copier, self._workers = loop, area, copier, workers
        self._orders: list[Order] = []

    @property
    def free(self) -> int:
        """Slots that are not lent."""
        return self._area.free

    def start(self, order: Order) -> None:
        """The source is about to write: it may have slots."""
        order.window = max(1, min(WINDOW, self._area.slots // order.siblings))
        self._orders.append(order)
        self._pump()

    def landed(self, order: Order, number: int) -> None:
        """A chunk is in its slot. It is put into place together with those of the request's other sources that fill the
        same items, as soon as all that are on their way have landed. Unknown and repeated ones change nothing.
        """
        if order.dropped or number not in order.slots or number in order.landed | order.moving:
            return
        order.landed.add(number)
        siblings = self._siblings(order)
        if any(number in other.slots and number not in other.landed | other.moving for other in siblings):
            return
        group = [other for other in siblings if number in other.landed]
        for other in group:
            other.landed.discard(number)
            other.moving.add(number)
        placing = Placing(group, number, [self._lot(other, number) for other in group])
        for share in range(placing.shares):
            self._workers.submit(partial(self._place, placing, share))

    def drop(self, order: Order) -> None:
        """The request has failed: no more slots for it, and those it has stay away until `release`."""
        order.dropped = True
        order.wished -= self._area.unwish(order)
        if order in self._orders:
            self._orders.remove(order)

    def release(self, order: Order) -> None:
        """Nothing more will land in the slots of a dropped order. Those being scattered come back by themselves."""
        self._area.give(*[order.slots.pop(n) for n in list(order.slots) if n not in order.moving])
        self._pump()

    def _lot(self, order: Order, number: int) -> Lot:
        kind, chunk = order.chunks[number]
        return Lot(chunk, order.ids[kind], self._area.buffer(order.slots[number]))

    def _place(self, placing: Placing, share: int) -> None:
        """On a worker. What has failed in the meantime is left out."""
        began = time.monotonic()
        pairs = zip(placing.orders, placing.lots, strict=True)
        self._copier.scatter([lot for order, lot in pairs if not order.dropped], share, placing.shares)
        self._copier.done()
        self._loop.call(self._placed, placing, time.monotonic() - began)

    def _placed(self, placing: Placing, seconds: float) -> None:
        placing.left -= 1
        placing.seconds += seconds
        if placing.left:
            return
        self._area.give(*[order.slots.pop(placing.number) for order in placing.orders])
        for order in placing.orders:
            self._back(order, placing.number, placing.seconds / len(placing.orders))
        self._pump()
        for order in placing.orders:
            order.done()

    def _back(self, order: Order, number: int, seconds: float) -> None:
        """A chunk is in place."""
        kind = order.chunks[number][0]
        order.seconds[kind] = order.seconds.get(kind, 0.0) + seconds
        order.moving.discard(number)
        order.scattered += 1
        if order.complete and order in self._orders:
            self._orders.remove(order)

    def _siblings(self, order: Order) -> list[Order]:
        return [other for other in self._orders if other.group == order.group]

    def _pump(self) -> None:
        """Have every order wish for what it can use."""
        for order in list(self._orders):
            while order.wants:
                number = order.next + order.wished
                order.wished += 1
                got = partial(self._loop.call, self._lent, order)
                near = self._near(order, number)
                self._area.wish(order, got, siblings=order.siblings, place=order.place, near=near)

    def _lent(self, order: Order, slot: int) -> None:
        order.wished -= 1
        if order.dropped:
            self._area.give(slot)
            return
        number, order.next = order.next, order.next + 1
        order.slots[number] = slot
        assert chunk_bytes(order.chunks[number][1]) <= self._area.slot_bytes
        order.grant(number, self._area.base(slot))

    def _near(self, order: Order, number: int) -> int | None:
        """As far from a sibling's slot for the same number as their places are apart."""
        for other in self._siblings(order):
            if number in other.slots:
                return other.slots[number] + order.place - other.place
        return None
