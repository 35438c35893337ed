"""One decode rank of one room, on the sending side, and the room itself: what is known of them, and nothing done."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire.messages import Ask

Item = Literal["straight", "sum", "packed"] | int
"""A part of a leg's work; numbers are staged chunks."""


class Cut(NamedTuple):
    """What the work for a leg consists of: something that goes straight, something packed, this many staged chunks,
    and whether its sums are a job of their own."""

    straight: bool
    packed: bool
    chunks: int
    summed_apart: bool


class Leg:
    """See the module. `items`: True once done. `jobs`: jobs that are queued or run, and what they do."""

    def __init__(self, peer: Peer, rank: RankId, ask: Ask) -> None:
        self.key: Key = (ask.room, ask.attempt)
        self.peer, self.rank, self.ask = peer, rank, ask
        self.items: dict[Item, bool] = {}
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

    def queue(self, cut: Cut) -> None:
        """Note what is to be done."""
        parts: list[tuple[Item, bool]] = [("straight", cut.straight), ("packed", cut.packed), ("sum", cut.summed_apart)]
        self.items = {item: False for item, wanted in parts if wanted} | dict.fromkeys(range(cut.chunks), False)

    @property
    def queued(self) -> bool:
        """Its work was cut: every leg has some."""
        return bool(self.items)

    @property
    def written(self) -> bool:
        """Everything was accepted by the other side's fabric."""
        return self.queued and all(self.items.values()) and not self.jobs

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
        self.sent: object | None = None
        self.metadata = b""

    @property
    def complete(self) -> bool:
        """Whether every decode rank that this rank feeds has asked."""
        return self.expected is not None and all(rank in self.legs for rank in self.expected)

    @property
    def confirmed(self) -> bool:
        """Every decode rank has seen all of it."""
        return self.complete and all(leg.confirmed for leg in self.legs.values())

    def overdue(self, options: Options) -> Failure:
        """Why it fails when its time is over: what is missing in its state."""
        failed = next((leg.failure for leg in self.legs.values() if leg.failure is not None), None)
        why: dict[State, Callable[[Options], Failure]] = {
            "bootstrapping": self._unasked,
            "waiting": self._unsent if self.sent is None else self._unwritten,
        }
        return failed or why.get(self.state, self._unconfirmed)(options)

    def _unasked(self, options: Options) -> Failure:
        asked = f"only {', '.join(str(tuple(rank)) for rank in self.legs)}" if self.legs else "no decode rank"
        return Failure("PD4032", f"room {self.number}: {asked} asked for it in {options.bootstrap_s:g} s", "decode")

    def _unsent(self, options: Options) -> Failure:
        cause = f"room {self.number}: the prefill engine sent nothing in {options.waiting_s:g} s"
        return Failure("PD4030", cause, "prefill")

    def _unwritten(self, options: Options) -> Failure:
        cause = f"room {self.number}: no write began in {options.waiting_s:g} s after it was sent"
        return Failure("PD4031", cause, "prefill")

    def _unconfirmed(self, options: Options) -> Failure:
        left = ", ".join(str(tuple(rank)) for rank, leg in self.legs.items() if not leg.confirmed)
        cause = f"room {self.number}: not confirmed by decode {left} in {options.transfer_s:g} s"
        return Failure("PD4031", cause, "decode")
