"""One decode rank of one room, on the sending side, and the room itself: what is known of them, and nothing done."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire.messages import Ask, More

Item = tuple[Literal["straight", "packed"], int] | Literal["sum"] | int
"""A part of a leg's work: what goes straight or packed of an installment, the sums, a staged chunk."""


class Cut(NamedTuple):
    """What the work for an installment of a leg consists of: something that goes straight, something packed, this many
    staged chunks, and whether its sums are a job of their own. `stops`: of each staged kind, the position before which
    it ends; None where it is all of it."""

    straight: bool
    packed: bool
    chunks: int
    summed_apart: bool
    stops: dict[str, int] | None = None


class Leg:
    """See the module. `items`: True once done. `jobs`: jobs that are queued or run, and what they do."""

    def __init__(self, peer: Peer, rank: RankId, ask: Ask) -> None:
        self.key: Key = (ask.room, ask.attempt)
        self.peer, self.rank, self.ask = peer, rank, ask
        self.items: dict[Item, bool] = {}
        self.cuts: list[Cut] = []
        """What the engine has sent so far, as work."""
        self.whole = False
        """The last of it was cut."""
        self.chunks = 0
        self.jobs: dict[int, Item | Literal["prove"]] = {}
        self.bases: dict[int, int] = {}
        """Where decode wants the chunks that it has lent a place for."""
        self.started = False
        """Its first byte has moved."""
        self.may_write = False
        """A write failed in a way after which the fabric may go on writing."""
        self.failure: Failure | None = None
        """Of its last write."""
        self.tries = 0
        self.mending = False
        """A write failed and will be done again, once nothing of it is under way any more."""
        self.stopped: Failure | None = None
        """Why it is not wanted any more."""
        self.unproven = False
        """Nobody could say for long whether it is still written: it holds nothing any more."""
        self.confirmed = False
        self.held: list[int] = []
        """Scratch that a write which may be under way reads from."""
        self.sums: dict[str, int] = {}

    def queue(self, cut: Cut, *, last: bool) -> None:
        """Note what is to be done. Of the last, something is."""
        n, first = len(self.cuts), self.chunks
        parts: list[tuple[Item, bool]] = [
            (("straight", n), cut.straight),
            (("packed", n), cut.packed),
            ("sum", cut.summed_apart),
        ]
        self.chunks += cut.chunks
        self.items |= {item: False for item, wanted in parts if wanted} | dict.fromkeys(
            range(first, self.chunks), False
        )
        self.cuts.append(cut)
        self.whole = last

    @property
    def written(self) -> bool:
        """Everything was accepted by the other side's fabric."""
        return self.whole and all(self.items.values()) and not self.jobs

    @property
    def more(self) -> list[More]:
        """What decode must know of installments; nothing where all was sent at once."""
        count = len(self.cuts)
        return [
            More(*self.key, n, cut.stops, self.whole and n == count - 1)
            for n, cut in enumerate(self.cuts)
            if cut.stops is not None
        ]

    @property
    def writing(self) -> bool:
        """A job of it may still read the room's items."""
        return any(item != "prove" for item in self.jobs.values())

    def todo(self) -> list[Item]:
        """What is neither done nor under way, of chunks only those that have a place."""
        busy = set(self.jobs.values())
        return [
            item
            for item, done in self.items.items()
            if not done and item not in busy and (not isinstance(item, int) or item in self.bases)
        ]


class Room:
    """One request on the sending side; `handle` is None while only decode has spoken of it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.handle: int | None = None
        self.state: State = "bootstrapping"
        self.legs: dict[RankId, Leg] = {}
        self.expected: tuple[RankId, ...] | None = None
        self.dp = 0
        self.sends: list[object] = []
        self.whole = False
        """The last was sent."""
        self.metadata = b""

    @property
    def complete(self) -> bool:
        """Whether every decode rank that this rank feeds has asked."""
        return self.expected is not None and all(rank in self.legs for rank in self.expected)

    @property
    def skip(self) -> dict[str, int]:
        """Of each kind, how many of the first items all of its legs hold already."""
        asked = [leg.ask.skip for leg in self.legs.values()]
        kinds = {kind for skip in asked for kind in skip}
        return {kind: min(skip.get(kind, 0) for skip in asked) for kind in sorted(kinds)}

    @property
    def confirmed(self) -> bool:
        """Every decode rank has seen all of it."""
        return self.complete and all(leg.confirmed for leg in self.legs.values())

    def overdue(self, options: Options) -> Failure:
        """Why it fails when its time is over: what is missing in its state."""
        failed = next((leg.failure for leg in self.legs.values() if leg.failure is not None), None)
        why: dict[State, Callable[[Options], Failure]] = {
            "bootstrapping": self._unasked,
            "waiting": self._unwritten if self.sends else self._unsent,
            "transferring": self._unconfirmed if self.whole else self._unsent,
        }
        return failed or why.get(self.state, self._unconfirmed)(options)

    def _unasked(self, options: Options) -> Failure:
        asked = f"only {', '.join(str(tuple(rank)) for rank in self.legs)}" if self.legs else "no decode rank"
        return Failure("PD4032", f"room {self.number}: {asked} asked for it in {options.bootstrap_s:g} s", "decode")

    def _unsent(self, options: Options) -> Failure:
        nothing = "nothing more" if self.sends else "nothing"
        cause = f"room {self.number}: the prefill engine sent {nothing} in {options.waiting_s:g} s"
        return Failure("PD4030", cause, "prefill")

    def _unwritten(self, options: Options) -> Failure:
        cause = f"room {self.number}: no write began in {options.waiting_s:g} s after it was sent"
        return Failure("PD4031", cause, "prefill")

    def _unconfirmed(self, options: Options) -> Failure:
        left = ", ".join(str(tuple(rank)) for rank, leg in self.legs.items() if not leg.confirmed)
        cause = f"room {self.number}: not confirmed by decode {left} in {options.transfer_s:g} s"
        return Failure("PD4031", cause, "decode")
