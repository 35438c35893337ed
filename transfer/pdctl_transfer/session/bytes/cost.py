"""Which way a kind's items travel: straight, packed by the sender, or through the receiver's staging area.

direct: each copy of the plan is a block. packed: the sender gathers rows, and writes them to where the receiver holds
them in one piece. staged: rows arrive packed, the receiver scatters them. What decides is what a block costs beside
its bytes; the figures are orders of magnitude of each transport, measured where said.
"""

from typing import Final, Literal, NamedTuple

from pdctl_transfer.fabric.base import Transport
from pdctl_transfer.session.bytes.packing import Strip

Way = Literal["direct", "packed", "staged"]
WAYS: Final[tuple[Way, ...]] = ("direct", "packed", "staged")
"""In the order in which they are preferred where they cost the same."""


class Price(NamedTuple):
    """Seconds for a block, a chunk's round trip over the control channel, and a byte on the wire or copied locally."""

    block: float
    chunk: float
    wire_byte: float
    copy_byte: float


#: tcp: measured with Mooncake over loopback. rdma: a posted work request; a byte at 200 Gbit/s. memory, shm: a memmove.
PRICES: Final[dict[Transport, Price]] = {
    "tcp": Price(30e-6, 500e-6, 1 / 2e9, 1 / 2.5e9),
    "rdma": Price(1e-6, 200e-6, 1 / 25e9, 1 / 2.5e9),
    "shm": Price(1e-6, 500e-6, 1 / 5e9, 1 / 2.5e9),
    "memory": Price(1e-6, 500e-6, 1 / 5e9, 1 / 2.5e9),
    "unknown": Price(30e-6, 500e-6, 1 / 2e9, 1 / 2.5e9),
}


class Load(NamedTuple):
    """What one rank sends another of one kind: strips, items, and runs of consecutive ids at the receiver."""

    strips: tuple[Strip, ...]
    items: int
    runs: int

    @property
    def bytes(self) -> int:
        """All packed bytes."""
        return self.items * sum(strip.bytes for strip in self.strips)


def seconds(load: Load, way: Way, price: Price, chunk_bytes: int) -> float:
    """What the way is expected to take. The receiver asks, so of the sender's ids nothing is known but their number."""
    chunks = -(-load.bytes // chunk_bytes)
    blocks = copied = round_trips = 0
    for strip in load.strips:
        size = load.items * strip.bytes
        whole = strip.src_run == 0 and strip.dst_run == 0 and strip.src_item == strip.dst_item == strip.bytes
        if way == "direct":
            blocks += load.runs if whole else load.items * sum(copy.repeats for copy in strip.copies)
        elif way == "packed":
            blocks += load.runs if strip.dst_item == strip.bytes else load.items
            copied += size
        else:
            blocks += 1
            copied += size if strip.src_run >= 0 else 2 * size
    if way == "staged":
        round_trips = chunks
    wire = load.bytes * price.wire_byte + blocks * price.block
    return wire + copied * price.copy_byte + round_trips * price.chunk


def possible(*, sender_copies: bool, receiver_copies: bool, staging: bool) -> frozenset[Way]:
    """The ways that two ranks have: packed needs a sender that gathers, staged also a receiver that scatters and has an
    area for it."""
    ways: set[Way] = {"direct"}
    if sender_copies:
        ways.add("packed")
    if sender_copies and receiver_copies and staging:
        ways.add("staged")
    return frozenset(ways)


def choose(load: Load, transport: Transport, chunk_bytes: int, ways: frozenset[Way] = frozenset(WAYS)) -> Way:
    """The cheapest of these ways that the load allows: packed needs rows in one piece at the receiver, and both of the
    others items that fit into a chunk."""
    if not load.items or not load.strips:
        return "direct"
    able = {"direct"}
    if all(strip.bytes <= chunk_bytes for strip in load.strips):
        able.add("staged")
        if all(strip.dst_run >= 0 for strip in load.strips):
            able.add("packed")
    price = PRICES[transport]
    left = [way for way in WAYS if way in ways and way in able] or ["direct"]
    return min(left, key=lambda way: seconds(load, way, price, chunk_bytes))
