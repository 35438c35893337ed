"""Which way a kind's items travel: straight, packed by the sender, or through the receiver's staging area.

direct: each copy of the plan is a block, whole items that follow each other are one. packed: the sender gathers rows
where that saves blocks, and writes them to where the receiver holds them in one piece. staged: rows arrive packed, the
receiver scatters them. What decides is what a block costs beside its bytes: so the blocks are counted that `work.py`
and `writer.py` will make (a test compares), and priced by figures that are orders of magnitude of each transport,
measured where said.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from pdctl_transfer.fabric.base import Transport
from pdctl_transfer.session.bytes.packing import GATHER_BELOW, Column, Segment, Strip, breaks, chunks, pieces
from pdctl_transfer.session.options import Way

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


class Breaks(NamedTuple):
    """Positions at which the sender's items, the receiver's, and either's do not follow each other."""

    here: list[int]
    there: list[int]
    either: list[int]


@dataclass(frozen=True, eq=False)
class Load:
    """What one rank sends another of one kind: strips, and both sides' ids. The receiver asks, and of the sender's ids
    knows nothing but their number: where `here` is None they are taken to break where the receiver's do."""

    strips: tuple[Strip, ...]
    there: Column
    here: Column | None = None

    @cached_property
    def breaks(self) -> Breaks:
        """Where to expect a new block."""
        there = breaks(self.there)
        if self.here is None:
            return Breaks(*[there.tolist()] * 3)
        here = breaks(self.here)
        return Breaks(here.tolist(), there.tolist(), np.union1d(here, there).tolist())

    @property
    def items(self) -> int:
        """How many of each strip."""
        return len(self.there)

    @property
    def bytes(self) -> int:
        """All packed bytes."""
        return self.items * sum(strip.bytes for strip in self.strips)


class Effort(NamedTuple):
    """What a way takes: blocks on the wire, bytes copied on both sides, chunks that are lent and scattered."""

    blocks: int = 0
    copied: int = 0
    chunks: int = 0


def effort(load: Load, way: Way, chunk_bytes: int) -> Effort:
    """What will be done for this load."""
    cuts = load.breaks
    if way == "direct":
        return Effort(_straight(load.strips, load.items, cuts.either))
    if way == "packed":
        gathered = tuple(strip for strip in load.strips if strip.pays)
        blocks = _straight([strip for strip in load.strips if not strip.pays], load.items, cuts.either)
        for piece in pieces(gathered, load.items, chunk_bytes):
            blocks += sum(_runs(segment, segment.strip.dst_step, cuts.there) for segment in piece)
        return Effort(blocks, load.items * sum(strip.bytes for strip in gathered))
    return _staged(load, chunk_bytes, cuts.here)


def seconds(load: Load, way: Way, price: Price, chunk_bytes: int) -> float:
    """What the way is expected to take."""
    blocks, copied, round_trips = effort(load, way, chunk_bytes)
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


def resolve(
    ways: Mapping[str, Way],
    loads: Mapping[str, Load],
    transport: Transport,
    chunk_bytes: int,
    *,
    copies: bool,
) -> dict[str, Way]:
    """The ways that the sender goes, which knows both sides' ids (`loads`, by kind): what decode took for few blocks
    may be many. Straight and packed land alike, so it need not be told. `copies`: whether the sender can gather."""
    able: frozenset[Way] = frozenset(("direct", "packed") if copies else ("direct",))
    return dict(ways) | {
        kind: choose(load, transport, chunk_bytes, able)
        for kind, load in loads.items()
        if ways.get(kind, "direct") == "direct"
    }


def _straight(strips: Sequence[Strip], items: int, cuts: Sequence[int]) -> int:
    """Blocks of `plan.bind`: a copy of an item each, whole items that follow each other together."""
    return sum(
        len(cuts) + 1 if copy.length == strip.src_step == strip.dst_step else items * copy.repeats
        for strip in strips
        for copy in strip.copies
    )


def _staged(load: Load, chunk_bytes: int, cuts: Sequence[int]) -> Effort:
    """Blocks of `writer.staged_blocks`: what is gathered and stands side by side in a chunk is one."""
    made = chunks(load.strips, load.items, chunk_bytes)
    blocks, copied = 0, load.bytes
    for chunk in made:
        before = False
        for segment in chunk:
            runs = _runs(segment, segment.strip.src_step, cuts)
            short = segment.strip.src_run < 0 or segment.bytes < runs * GATHER_BELOW
            blocks += runs if not short else not before
            copied += segment.bytes if short else 0
            before = short
    return Effort(blocks, copied, len(made))


def _runs(segment: Segment, item: int, cuts: Sequence[int]) -> int:
    """Pieces in which a segment's items stand where an item has so many bytes: those filled whole follow each other."""
    if segment.strip.bytes != item:
        return segment.stop - segment.start
    return bisect_left(cuts, segment.stop) - bisect_right(cuts, segment.start) + 1
