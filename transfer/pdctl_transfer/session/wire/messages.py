"""Every message of the control channel, as msgpack arrays with a one-letter tag.

Unknown fields at the end of a message are ignored, so a newer minor version may append; `PROTOCOL` changes when an old
peer would misread.
"""

from typing import Annotated

from msgspec import Meta, Struct, msgpack

from pdctl_transfer.region import Region
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Rank, Verify, Way

PROTOCOL = 3
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""What fits an address or a count."""


class Message(Struct, frozen=True, array_like=True):
    """Base of all messages."""


class Register(Message, frozen=True, tag="R"):
    """Rank to registry: I serve. One rank a connection; repeating it is harmless, and answered by `Standing`."""

    rank: Rank
    host: str
    port: int
    incarnation: str
    manifest: bytes


class Standing(Message, frozen=True, tag="V"):
    """Registry to rank: decode finds you (no code), or why it does not. Said again whenever it changes."""

    code: str
    cause: str


class Here(Message, frozen=True, tag="I"):
    """Rank to registry, as its heartbeat: I live, and registered as this incarnation. Answered by `Beat` or `Again`."""

    incarnation: str


class Again(Message, frozen=True, tag="J"):
    """Registry to rank: I do not know you on this connection: register, and say your open rooms, again."""


class Beat(Message, frozen=True, tag="B"):
    """Either way: I live."""


class RoomAt(Message, frozen=True, tag="M"):
    """Rank to registry: this room is open here, so the rank's attention-DP group serves it."""

    room: int


class RoomOver(Message, frozen=True, tag="O"):
    """Rank to registry: this room is no longer open here."""

    room: int


class Lookup(Message, frozen=True, tag="L"):
    """Decode to registry: who serves this room?"""

    serial: int
    room: int


class Served(Struct, frozen=True, array_like=True):
    """A registered rank and where its control listener is."""

    rank: Rank
    host: str
    port: int
    incarnation: str


class Route(Message, frozen=True, tag="T"):
    """Registry to decode. `missing` names what must still come before the room can be served; else empty."""

    serial: int
    missing: str
    ranks: tuple[Served, ...]
    manifest: bytes


class Hello(Message, frozen=True, tag="H"):
    """First message of both sides of a link: who I am, what I hold, where. `copies`: I can gather, scatter and sum in
    it; False where neither the CPU nor a copier reaches it."""

    protocol: int
    version: str
    rank: Rank
    incarnation: str
    manifest: bytes
    fabric: str
    address: bytes
    regions: tuple[Region, ...]
    chunk_bytes: int
    pulse: int = 0
    """A port that the process listens on as long as it lives, and on which it says nothing."""
    copies: bool = True


class Agree(Message, frozen=True, tag="A"):
    """The plan that I computed has this digest."""

    digest: str


class Refuse(Message, frozen=True, tag="X"):
    """No link between us, and why. Decode declines the rooms that waited for it, so that both sides fail them."""

    code: str
    cause: str


class Ask(Message, frozen=True, tag="Q"):
    """Decode to prefill: write this room's state to these ids (little-endian int64), each kind in this way. Said again
    after a cut: all that prefill has said of the attempt is then said again, too.
    """

    room: int
    attempt: str
    indices: dict[str, bytes]
    ways: dict[str, Way]
    verify: Verify
    skip: dict[str, Number] = {}
    """Of each kind, how many of the first items decode holds already: no ids are given for them."""


class Ready(Message, frozen=True, tag="Y"):
    """Prefill to decode: the room is open here too."""

    room: int
    attempt: str


class Start(Message, frozen=True, tag="S"):
    """Prefill to decode: bytes begin to move now. `more`: in installments, each of which is said by `More`."""

    room: int
    attempt: str
    more: bool = False


class More(Message, frozen=True, tag="U"):
    """Prefill to decode: installment `number` is sent. `stops`: of each staged kind, the position before which it ends;
    its chunks are numbered on from those before."""

    room: int
    attempt: str
    number: Number
    stops: dict[str, Number]
    last: bool


class Grant(Message, frozen=True, tag="G"):
    """Decode to prefill: put staged chunk number `chunk` at this address."""

    room: int
    attempt: str
    chunk: Number
    base: Number


class Landed(Message, frozen=True, tag="N"):
    """Prefill to decode: the chunk is there."""

    room: int
    attempt: str
    chunk: Number


class Done(Message, frozen=True, tag="D"):
    """Prefill to decode: all is written. `sums` holds a checksum a kind, of what this rank wrote to that one."""

    room: int
    attempt: str
    metadata: bytes
    sums: dict[str, int]


class Confirm(Message, frozen=True, tag="C"):
    """Decode to prefill: I have seen all of it."""

    room: int
    attempt: str


class Failed(Message, frozen=True, tag="F"):
    """Either way: this attempt is over. `side` is to blame."""

    room: int
    attempt: str
    code: str
    cause: str
    side: Side


class Decline(Message, frozen=True, tag="K"):
    """Decode to prefill: this room failed before I asked you for it, and I will not. `side` is to blame."""

    room: int
    code: str
    cause: str
    side: Side


class Withdraw(Message, frozen=True, tag="W"):
    """Decode to prefill: I asked the wrong rank. No failure; `Settled` answers."""

    room: int
    attempt: str


class Settled(Message, frozen=True, tag="E"):
    """Prefill to decode: nothing more of this attempt will be written, whatever is said of it later."""

    room: int
    attempt: str


class Bye(Message, frozen=True, tag="Z"):
    """Either way: I close, in order."""


AnyMessage = (
    Register
    | Standing
    | Here
    | Again
    | Beat
    | RoomAt
    | RoomOver
    | Lookup
    | Route
    | Hello
    | Agree
    | Refuse
    | Ask
    | Ready
    | Start
    | More
    | Grant
    | Landed
    | Done
    | Confirm
    | Failed
    | Decline
    | Withdraw
    | Settled
    | Bye
)

ANSWERS = Ready | Start | More | Landed | Done | Failed | Settled
"""What a prefill rank says about a request."""

_decoder: msgpack.Decoder[AnyMessage] = msgpack.Decoder(AnyMessage)
encode = msgpack.Encoder().encode
decode = _decoder.decode
