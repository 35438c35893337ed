"""The bytes of a leg: what decode asked for, what the engine sent, and how the work is cut. No machine knows of it."""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from pdctl_transfer.fabric.base import Peer, Transport
from pdctl_transfer.plan import RankId
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.cost import Load, resolve
from pdctl_transfer.session.bytes.packing import Chunk, Column, chunks, pieces
from pdctl_transfer.session.bytes.work import PairPlan, Part
from pdctl_transfer.session.drive.pulse import Vital
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.options import Way
from pdctl_transfer.session.wire.messages import Ask, Hello
from pdctl_transfer.telemetry import Tally, Telemetry

FEW: Final = 8
"""Items of a kind so few that their order decides nothing."""
INLINE_BYTES: Final = 1 << 20
"""Of a leg that is no larger, the sums are computed by the job that writes it: a thread of their own costs more."""


class Partner(Struct, frozen=True):
    """A decode rank, as it said who it is: the same whatever connection it speaks over."""

    hello: Hello
    pair: PairPlan
    part: Part
    expected: tuple[RankId, ...]
    chunk_bytes: int
    name: str
    vital: Vital


class Sent(Struct, frozen=True):
    """What the engine gave to `send`."""

    indices: dict[str, Column]


class LegWork:
    """See the module. Cut once, on the loop thread; then jobs read it, and each writes only what is its own."""

    def __init__(self, ask: Ask, partner: Partner) -> None:
        self.ask, self.partner, self.part = ask, partner, partner.part
        self.there: dict[str, Column] = {kind: np.frombuffer(data, dtype="<i8") for kind, data in ask.indices.items()}
        self.ways: dict[str, Way] = ask.ways
        self.here: dict[str, Column] = {}
        self.peer: Peer | None = None
        """The fabric's side of it: of this leg, whatever becomes of the connection."""
        self.chunks: list[tuple[str, Chunk]] = []
        self.pieces: list[tuple[str, Chunk]] = []
        self.summed_apart = True
        self.tallies: dict[str, Tally] = {}
        self.queued_at = self.started_at = 0.0
        self.said = False
        """Decode was told that it begins."""

    @property
    def key(self) -> tuple[int, str]:
        """Room and attempt."""
        return self.ask.room, self.ask.attempt

    def cut(self, sent: Sent, transport: Transport, *, copies: bool) -> Cut:
        """Cut the work, now that it is known what is sent. `copies`: whether this side can gather."""
        self.here, self.queued_at = sent.indices, time.monotonic()
        many = [kind for kind in self.part.strips if FEW < self._items(kind) == len(self.there.get(kind, ()))]
        if many:
            loads = {kind: Load(self.part.strips[kind], self.there[kind], self.here[kind]) for kind in many}
            self.ways = resolve(self.ways, loads, transport, self.partner.chunk_bytes, copies=copies)
        split, limit = self.part.split(self.ways), self.partner.chunk_bytes
        for kind, strips in split.staged.items():
            self.chunks += [(kind, chunk) for chunk in chunks(strips, self._items(kind), limit)]
        for kind, strips in split.packed.items():
            self.pieces += [(kind, piece) for piece in pieces(strips, self._items(kind), limit)]
        straight, packed = bool(split.direct), bool(self.pieces)
        small = straight and not self.chunks and sum(self._bytes(kind) for kind in split.direct) <= INLINE_BYTES
        alongside = small or (packed and not straight)  # summed up by the job that writes
        self.summed_apart = self.ask.verify == "full" or not alongside
        return Cut(straight, packed, len(self.chunks), self.summed_apart)

    def places(self, kind: str) -> tuple[Column, Sequence[Region], Column]:
        """Ids here, regions and ids there."""
        return self.here[kind], self.partner.hello.regions, self.there[kind]

    def record(self, telemetry: Telemetry) -> None:
        """Count what was moved."""
        name = self.partner.name
        telemetry.queued(name, max(0.0, self.started_at - self.queued_at))
        for kind, tally in self.tallies.items():
            telemetry.written(self.ask.room, name, kind, self.ways.get(kind, "direct"), tally, self._items(kind))

    def _items(self, kind: str) -> int:
        return len(self.here.get(kind, ()))

    def _bytes(self, kind: str) -> int:
        return self._items(kind) * sum(strip.bytes for strip in self.part.strips[kind])
