"""Staging slots of a request: which chunk gets one, and when chunks that landed are put into place.

A slot is lent for one chunk and comes back when the chunk is in place; who is served first is the area's business. A
source keeps at most WINDOW. Chunks of one number of all sources of a request fill the same items and lie side by side,
and are put into place together, which is cheaper; so one that had to wait would hold up all. Slots of a failed request
are kept until its source is settled.
"""

from typing import Final

from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine.base import Machine
from pdctl_transfer.session.machine.events import Lent
from pdctl_transfer.session.machine.request import Order, Request, Source
from pdctl_transfer.session.wire import messages as say

WINDOW: Final = 3
"""Chunks of one source under way at once: one on the wire, one being put into place, one in the control channel."""


class Lending(Machine):
    """The part of a receiver that deals with slots."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self._slots = slots
        self._placing: dict[int, tuple[Request, int, list[Source]]] = {}
        """Jobs: request, chunk number, sources."""

    def order(self, request: Request, source: Source, chunks: int) -> None:
        """The source is about to write so many chunks, perhaps not the first: it may have slots."""
        if not chunks:
            return
        if source.order is None:
            ranks = sorted(request.sources)
            window = max(1, min(WINDOW, self._slots // len(ranks)))
            source.order = Order(0, window, len(ranks), ranks.index(source.rank))
        source.order.chunks += chunks
        self._borrow(request, source, source.order)

    def lent(self, request: Request | None, event: Lent) -> None:
        """A slot came: tell the source, or give it back where it is not needed any more."""
        source = request.sources.get(event.rank) if request is not None else None
        order = source.order if source is not None else None
        if request is None or source is None or order is None or event.number not in order.wished:
            self.do(do.GiveBack((event.slot,)))
            return
        order.wished.discard(event.number)
        order.slots[event.number] = (event.slot, event.base)
        self.do(do.SendMessage(source.peer, say.Grant(*request.key, event.number, event.base)))

    def grant_again(self, request: Request, source: Source) -> None:
        """A new connection: say which slots are lent and have not been filled."""
        order = source.order
        if order is None:
            return
        for number, (_, base) in order.slots.items():
            if number not in order.landed | order.moving:
                self.do(do.SendMessage(source.peer, say.Grant(*request.key, number, base)))

    def landed(self, request: Request, source: Source, number: int) -> None:
        """A chunk is in its slot. It is put into place together with those of the request's other sources that fill the
        same items, as soon as all that are on their way have landed. Unknown and repeated ones change nothing.
        """
        order = source.order
        if order is None or number not in order.slots or number in order.landed | order.moving:
            return
        order.landed.add(number)
        orders = [(other, other.order) for other in request.sources.values() if other.order is not None]
        if any(number in o.slots and number not in o.landed | o.moving for _, o in orders):
            return
        group = [(other, o) for other, o in orders if number in o.landed]
        for _, o in group:
            o.landed.discard(number)
            o.moving.add(number)
        job = self.start(do.Place(request.key, number, tuple((other.rank, o.slots[number][0]) for other, o in group)))
        self._placing[job] = (request, number, [other for other, _ in group])

    def placed(self, job: int, *, well: bool) -> Request | None:
        """A placing ended; its request, None where the job was none. Its slots are free."""
        if job not in self._placing:
            return None
        request, number, sources = self._placing.pop(job)
        for source in sources:
            order = source.order
            assert order is not None
            order.moving.discard(number)
            order.placed += well
            self.do(do.GiveBack((order.slots.pop(number)[0],)))
            if request.open:
                self._borrow(request, source, order)
        return request

    def drop(self, request: Request) -> None:
        """The request has failed: no more slots for it."""
        for source in request.sources.values():
            if source.order is not None:
                source.order.wished.clear()
                self.do(do.Unborrow(request.key, source.rank))

    def give_back(self, request: Request) -> None:
        """Nothing more will land in the slots of a failed request."""
        for source in request.sources.values():
            order = source.order
            if order is not None and order.slots:
                self.do(do.GiveBack(tuple(slot for slot, _ in order.slots.values())))
                order.slots.clear()

    def _borrow(self, request: Request, source: Source, order: Order) -> None:
        while order.wants:
            number, order.next = order.next, order.next + 1
            order.wished.add(number)
            near = self._near(request, order, number)
            self.do(do.Borrow(request.key, source.rank, number, order.siblings, order.place, near))

    @staticmethod
    def _near(request: Request, order: Order, number: int) -> int | None:
        """As far from a sibling's slot for the same number as their places are apart."""
        for source in request.sources.values():
            other = source.order
            if other is not None and other is not order and number in other.slots:
                return other.slots[number][0] + order.place - other.place
        return None
