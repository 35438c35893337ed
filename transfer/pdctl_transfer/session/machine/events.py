"""What happens to a machine. Each event carries `now`, seconds on a monotonic clock; machines have no other clock.

A *peer* is named by its incarnation: it is the same whatever connection it speaks over.
"""

from typing import Any

from msgspec import Struct

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.wire.messages import AnyMessage, Ask

Peer = str
Key = tuple[int, str]
"""A room and an attempt at it: what messages call a request."""
Timer = tuple[Any, ...]


class Event(Struct, frozen=True):
    """Base of all events."""

    now: float


# The engine's calls.


class Opened(Event, frozen=True):
    """An engine opened a room. `fault`: why it cannot be served at all. `attempt`, `registry`: decode's only."""

    handle: int
    room: int
    fault: Failure | None = None
    attempt: str = ""
    registry: tuple[str, int] = ("", 0)


class Sent(Event, frozen=True):
    """Prefill's state is in place, or an installment of it, which is not the last; `what` is opaque to the machine."""

    handle: int
    what: object
    metadata: bytes = b""
    last: bool = True


class Aborted(Event, frozen=True):
    """An engine gave a room up."""

    handle: int
    failure: Failure


class Closing(Event, frozen=True):
    """The engine leaves: everything open ends, nothing new begins."""

    failure: Failure


# Links.


class LinkReady(Event, frozen=True):
    """A connection to this peer stands and both sides agree on the plan; perhaps not the first."""

    peer: Peer


class LinkBroken(Event, frozen=True):
    """The connection to a peer ended; it may come back. `closed`: it said that it leaves."""

    peer: Peer
    failure: Failure
    closed: bool = False


class LinkFailed(Event, frozen=True):
    """An attempt to connect to a peer failed; there will be others as long as it is needed."""

    peer: Peer
    failure: Failure


class LinkRefused(Event, frozen=True):
    """One side judged that this pair cannot work."""

    peer: Peer
    failure: Failure


class LinkSilent(Event, frozen=True):
    """The connection stands and nothing comes: frozen, or cut off."""

    peer: Peer
    failure: Failure


class PeerGone(Event, frozen=True):
    """The peer's process is shown to have ended: it writes no more, and nothing can be written to it."""

    peer: Peer
    failure: Failure


class Asked(Event, frozen=True):
    """A decode rank asks for a room. `expected`: all decode ranks that must ask before it is complete."""

    peer: Peer
    rank: RankId
    dp: int
    expected: tuple[RankId, ...]
    ask: Ask


class Heard(Event, frozen=True):
    """Any other message about a request."""

    peer: Peer
    message: AnyMessage


# Finding prefill ranks.


class Target(Struct, frozen=True):
    """A prefill rank that must be asked."""

    rank: RankId
    peer: Peer
    address: tuple[str, int]


class Routed(Event, frozen=True):
    """The registry answered. `missing`: what must come before the room can be served; then there are no targets.
    `changes`: another answer is possible later, since prefill has several DP groups."""

    key: Key
    targets: tuple[Target, ...]
    missing: str = ""
    changes: bool = False


# Work.


class Result(Struct, frozen=True):
    """What a job did for one leg. `settled`: nothing of it is under way any more. `held`: resources that whatever is
    under way still uses. `again`: worth another try once that has ended. A job that never ran has no failure.
    """

    leg: Key
    ok: bool
    settled: bool = True
    failure: Failure | None = None
    sums: dict[str, int] = {}
    held: tuple[int, ...] = ()
    again: bool = False


class Began(Event, frozen=True):
    """The first byte of a leg is about to move."""

    leg: Key


class Faltered(Event, frozen=True):
    """A leg's write failed while its job goes on with others."""

    leg: Key
    failure: Failure
    again: bool


class JobDone(Event, frozen=True):
    """A job ended: one result a leg that it served (sender), or what is wrong with what landed (receiver)."""

    job: int
    results: tuple[Result, ...] = ()
    fault: str = ""


class JobBroke(Event, frozen=True):
    """A job raised. `settled`: nothing of it is under way; `held`: resources that it had."""

    job: int
    failure: Failure
    settled: bool = True
    held: tuple[int, ...] = ()


class Lent(Event, frozen=True):
    """A staging slot for a chunk of one source of a request."""

    key: Key
    rank: RankId
    number: int
    slot: int
    base: int


class TimerFired(Event, frozen=True):
    """The time of an `Arm` has come."""

    timer: Timer


AnyEvent = (
    Opened
    | Sent
    | Aborted
    | Closing
    | LinkReady
    | LinkBroken
    | LinkFailed
    | LinkRefused
    | LinkSilent
    | PeerGone
    | Asked
    | Heard
    | Routed
    | Began
    | Faltered
    | JobDone
    | JobBroke
    | Lent
    | TimerFired
)
