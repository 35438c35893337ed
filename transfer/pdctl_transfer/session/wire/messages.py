"""Every message of the control channel, as msgpack arrays with a one-letter tag.

Unknown fields at the end of a message are ignored, so a newer minor version may append; `PROTOCOL` changes when an old
peer would misread.
"""

from msgspec import Struct, msgpack

from pdctl_transfer.session.bytes.cost import Way
from pdctl_transfer.session.options import Rank, Region, Verify

PROTOCOL = 2


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
    """First message of both sides of a link: who I am, what I hold, where."""

    protocol: int
    version: str
    rank: Rank
    incarnation: str
    manifest: bytes
    fabric: str
    address: bytes
    regions: tuple[Region, ...]
    chunk_bytes: int


class Agree(Message, frozen=True, tag="A"):
    """The plan that I computed has this digest."""

    digest: str


class Refuse(Message, frozen=True, tag="X"):
    """No link between us, and why. Decode adds the rooms that waited for it, so that both sides fail them."""

    code: str
    cause: str
    rooms: tuple[int, ...] = ()


class Ask(Message, frozen=True, tag="Q"):
    """Decode to prefill: write this room's state to these ids (little-endian int64), each kind in this way."""

    room: int
    attempt: str
    indices: dict[str, bytes]
    ways: dict[str, Way]
    verify: Verify


class Ready(Message, frozen=True, tag="Y"):
    """Prefill to decode: the room is open here too."""

    room: int
    attempt: str


class Start(Message, frozen=True, tag="S"):
    """Prefill to decode: bytes begin to move now."""

    room: int
    attempt: str


class Grant(Message, frozen=True, tag="G"):
    """Decode to prefill: put staged chunk number `chunk` at this address."""

    room: int
    attempt: str
    chunk: int
    base: int


class Landed(Message, frozen=True, tag="N"):
    """Prefill to decode: the chunk is there."""

    room: int
    attempt: str
    chunk: int


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
    side: str


class Decline(Message, frozen=True, tag="K"):
    """Decode to prefill: this room failed before I asked you for it, and I will not. `side` is to blame."""

    room: int
    code: str
    cause: str
    side: str


class Query(Message, frozen=True, tag="?"):
    """Decode to prefill, after a link was lost: is anything of this attempt still under way?"""

    room: int
    attempt: str


class Settled(Message, frozen=True, tag="E"):
    """Prefill to decode: nothing more of this attempt will be written."""

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
    | Grant
    | Landed
    | Done
    | Confirm
    | Failed
    | Decline
    | Query
    | Settled
    | Bye
)

_decoder: msgpack.Decoder[AnyMessage] = msgpack.Decoder(AnyMessage)
encode = msgpack.Encoder().encode
decode = _decoder.decode
