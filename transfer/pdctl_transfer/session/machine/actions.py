"""What a machine wants done. The driver does it and says so by an event; machines do nothing themselves."""

from msgspec import Struct

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine.events import Key, Peer, Timer
from pdctl_transfer.session.wire.messages import AnyMessage


class Action(Struct, frozen=True):
    """Base of all actions."""


class SendMessage(Action, frozen=True):
    """Say this to a peer; dropped where no connection to it stands, since what matters is said again on the next one.
    A `Decline` waits for the connection."""

    peer: Peer
    message: AnyMessage


class AskFor(Action, frozen=True):
    """Ask this peer for its part of a request; again after a cut, with the same words."""

    key: Key
    rank: RankId
    peer: Peer


class Find(Action, frozen=True):
    """Look up in the registry who serves a request: `Routed` follows, perhaps several times."""

    key: Key
    room: int
    registry: tuple[str, int]


class Unfind(Action, frozen=True):
    """No answer is needed any more."""

    key: Key


class Want(Action, frozen=True):
    """A link to this peer is needed: connect if there is none, and again as long as the machine `needs` it."""

    peer: Peer
    address: tuple[str, int]


class Announce(Action, frozen=True):
    """Tell the registry that this room is open here, or no longer; one that `failed` stays known for a while."""

    room: int
    open: bool
    failed: bool = False


# Work.


class Straight(Struct, frozen=True):
    """Write what goes straight of an installment of a leg."""

    leg: Key
    number: int = 0


class Sum(Struct, frozen=True):
    """Compute what the receiver compares."""

    leg: Key


class Staged(Struct, frozen=True):
    """Write a chunk to the place that decode lent for it."""

    leg: Key
    chunk: int
    base: int


class Packed(Struct, frozen=True):
    """Gather and write what is packed of an installment, for several legs of a room in turn."""

    legs: tuple[Key, ...]
    number: int = 0


class Prove(Struct, frozen=True):
    """Find out whether anything written for this leg may still be under way."""

    leg: Key


class Place(Struct, frozen=True):
    """Put chunks of one number, of these sources of a request, from their slots into the items that they fill."""

    key: Key
    number: int
    slots: tuple[tuple[RankId, int], ...]


class Check(Struct, frozen=True):
    """Look at all that landed of a request; `sums`: what its sources say they sent."""

    key: Key
    sums: tuple[tuple[RankId, dict[str, int]], ...]


Work = Straight | Sum | Staged | Packed | Prove | Place | Check


class StartJob(Action, frozen=True):
    """Have this done by a worker; exactly one JobDone or JobBroke answers, whatever happens."""

    job: int
    work: Work


class AbandonJob(Action, frozen=True):
    """Let a job end at its next safe point, or never begin. It is answered all the same."""

    job: int


class Borrow(Action, frozen=True):
    """A staging slot is wanted for a chunk: `Lent` follows. Chunks of one number of `siblings` sources should lie in a
    row, this one's at `place`; `near`: the slot that fits those which are lent already."""

    key: Key
    rank: RankId
    number: int
    siblings: int
    place: int
    near: int | None


class Unborrow(Action, frozen=True):
    """No slots are wanted for this source any more."""

    key: Key
    rank: RankId


class GiveBack(Action, frozen=True):
    """Slots of staging (receiver) or scratch (sender) that nobody uses any more."""

    slots: tuple[int, ...]


class Stuck(Action, frozen=True):
    """These scratch slots are used by a write that may never end."""

    slots: tuple[int, ...]


# Time, and the engine.


class Arm(Action, frozen=True):
    """Say TimerFired at this time; replaces an earlier time of the same timer."""

    timer: Timer
    at: float


class Cancel(Action, frozen=True):
    """Forget the timer."""

    timer: Timer


class Advance(Action, frozen=True):
    """A handle enters a state."""

    handle: int
    state: State


class Spare(Action, frozen=True):
    """Decode holds so many of the first items of each kind already."""

    handle: int
    skip: dict[str, int]


class Deliver(Action, frozen=True):
    """What prefill's engine sent along."""

    handle: int
    metadata: bytes


class End(Action, frozen=True):
    """A handle ends: confirmed where there is no failure."""

    handle: int
    failure: Failure | None


class Release(Action, frozen=True):
    """The buffers of an ended handle may be used again."""

    handle: int


class Count(Action, frozen=True):
    """All of a leg is written, or of a request is in place: note the figures."""

    leg: Key


class Forget(Action, frozen=True):
    """Nothing more is wanted of this leg or request: what is kept for it can go."""

    key: Key


AnyAction = (
    SendMessage
    | AskFor
    | Find
    | Unfind
    | Want
    | Announce
    | StartJob
    | AbandonJob
    | Borrow
    | Unborrow
    | GiveBack
    | Stuck
    | Arm
    | Cancel
    | Advance
    | Spare
    | Deliver
    | End
    | Release
    | Count
    | Forget
)
