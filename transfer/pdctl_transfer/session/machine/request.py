"""A request on the receiving side, the prefill ranks that write it, and its staging slots: what is known of them."""

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import ENDS, Failure, State
from pdctl_transfer.session.machine.events import Key, Peer, Target
from pdctl_transfer.session.options import Options


class Order:
    """The staged chunks of one source: each gets a slot, lands in it, and is put into place."""

    def __init__(self, chunks: int, window: int, siblings: int, place: int) -> None:
        self.chunks, self.window = chunks, window
        self.siblings, self.place = siblings, place
        """How many sources of the request there are, and where this one stands among them."""
        self.next = 0
        self.wished: set[int] = set()
        """Chunks for which a slot is wanted."""
        self.slots: dict[int, tuple[int, int]] = {}
        """Slot and address, by the chunk it is lent for."""
        self.landed: set[int] = set()
        """Chunks that landed and wait to be put into place."""
        self.moving: set[int] = set()
        """Chunks that a worker is putting into place."""
        self.placed = 0

    @property
    def complete(self) -> bool:
        """Every chunk is in place."""
        return self.placed == self.chunks

    @property
    def wants(self) -> bool:
        """Whether it can use another slot."""
        return self.next < self.chunks and len(self.slots) + len(self.wished) < self.window


class Source:
    """One prefill rank that a request asks."""

    def __init__(self, target: Target) -> None:
        self.rank, self.peer, self.address = target.rank, target.peer, target.address
        self.asked = self.ready = self.started = self.done = False
        self.settled = True
        """It writes nothing: not asked, done, or it said so."""
        self.order: Order | None = None
        self.installments = 0
        self.last = False
        """Of installments, the last was told of."""
        self.sums: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """It has written everything, and what was staged is in place."""
        return self.done and (self.order is None or self.order.complete)


class Request:
    """One request on the receiving side."""

    def __init__(self, handle: int, key: Key, registry: tuple[str, int]) -> None:
        self.handle, self.key, self.registry = handle, key, registry
        self.state: State = "bootstrapping"
        self.sources: dict[RankId, Source] = {}
        self.leaving: list[Source] = []
        """Ranks of another group that were asked in error, and have not said yet that they write nothing."""
        self.next: tuple[Target, ...] = ()
        """Whom to ask once they have."""
        self.missing = ""
        self.failure: Failure | None = None
        self.checking: int | None = None
        """The job that looks at what landed."""
        self.released = False
        """Its buffers may be used again."""
        self.seeking = False
        """The registry has been asked."""

    @property
    def room(self) -> int:
        """Its room."""
        return self.key[0]

    @property
    def open(self) -> bool:
        """It has not ended."""
        return self.state not in ENDS

    @property
    def all_ready(self) -> bool:
        """Every source has the room open."""
        return bool(self.sources) and all(source.ready for source in self.sources.values())

    @property
    def complete(self) -> bool:
        """Everything of every source is in place."""
        return bool(self.sources) and all(source.complete for source in self.sources.values())

    @property
    def expects_more(self) -> bool:
        """A source sends in installments, and has not told of the last."""
        return any(source.installments and not source.last for source in self.sources.values())

    @property
    def settled(self) -> bool:
        """Nothing can land any more, nothing is being put into place, nobody looks at it."""
        sources = [*self.sources.values(), *self.leaving]
        still = all(source.settled and not (source.order and source.order.moving) for source in sources)
        return still and self.checking is None

    def source_of(self, peer: Peer) -> Source | None:
        """The source that this peer is."""
        return next((source for source in [*self.sources.values(), *self.leaving] if source.peer == peer), None)

    def waits_for(self, peer: Peer) -> bool:
        """Whether it is open and needs something of this peer."""
        return self.open and any(source.peer == peer and not source.done for source in self.sources.values())

    def overdue(self, options: Options, link: Failure | None, registry: Failure | None) -> Failure:
        """Why it fails when its time is over. link: why a source is not linked. registry: why that does not answer."""
        room = f"room {self.room}"
        if self.state == "waiting":
            return Failure("PD4030", f"{room}: nothing was sent in {options.waiting_s:g} s", "prefill")
        if self.state == "transferring":
            left = ", ".join(str(tuple(rank)) for rank, source in self.sources.items() if not source.complete)
            cause = f"{room}: not complete in {options.transfer_s:g} s, waiting for prefill {left}"
            return Failure("PD4031", cause, "prefill")
        within = f"{room}: after {options.bootstrap_s:g} s"
        known = link if self.sources else registry
        if known is not None:
            return Failure(known.code, f"{within}, {known.cause}", known.side)
        if not self.sources:
            return Failure("PD4002", f"{within}, {self.missing or 'no answer'}", "prefill")
        unready = [str(tuple(rank)) for rank, source in self.sources.items() if not source.ready]
        return Failure("PD4032", f"{within}, not opened by prefill {', '.join(unready)}", "prefill")
