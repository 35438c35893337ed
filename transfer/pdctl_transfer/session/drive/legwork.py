"""The bytes of a leg: what decode asked for, what the engine sent, and how the work is cut. No machine knows of it."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from pdctl_transfer.fabric.base import Peer, Transport
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.cost import Load, resolve
from pdctl_transfer.session.bytes.packing import Chunk, Column, chunks, pieces
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.checks import Held
from pdctl_transfer.session.drive.pulse import Vital
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.handles import Sent
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.options import Way
from pdctl_transfer.session.wire.messages import Ask, Hello
from pdctl_transfer.telemetry import Tally, Telemetry

FEW: Final = 8
"""Items of a kind so few that their order decides nothing."""
WINDOWS: Final = frozenset({("sglang", "swa"), ("sglang", "block_scale_swa")})
"""Engine and kind of lists that name the pages of a request's last tokens: both sides' end together, wherever they
begin. (SGLang 0.5.23 pairs them from the beginning and cuts the longer one's end: each page lands one place off.)"""
INLINE_SAMPLES: Final = 1 << 14
"""Where no more copies of items are looked at, the job that writes them sums up while they are on the wire: it takes
less than a millisecond, and a thread of its own would take the interpreter from the one that has to begin the write."""


class Partner(Struct, frozen=True):
    """A decode rank, as it said who it is: the same whatever connection it speaks over."""

    hello: Hello
    held: Held
    part: Part
    expected: tuple[RankId, ...]
    chunk_bytes: int
    name: str
    vital: Vital
    windows: frozenset[str] = frozenset()
    """Kinds of both engines that are paired from the end."""


def windows(prefill: Manifest, decode: Manifest) -> frozenset[str]:
    """Kinds whose lists end together on both sides."""
    return frozenset(kind for engine, kind in WINDOWS if prefill.engine.name == decode.engine.name == engine)


class Installment(Struct, frozen=True):
    """What is written of one `send`: positions in the id lists by kind, ways, pieces to be packed. `quick`: all of it
    goes straight, and the sums are computed on the way."""

    spans: dict[str, slice]
    ways: dict[str, Way]
    pieces: list[tuple[str, Chunk]]
    quick: bool


class LegWork:
    """See the module. Cut once, on the loop thread; then jobs read it, and each writes only what is its own."""

    def __init__(self, ask: Ask, partner: Partner) -> None:
        self.ask, self.partner, self.part = ask, partner, partner.part
        self.there: dict[str, Column] = {kind: np.frombuffer(data, dtype="<i8") for kind, data in ask.indices.items()}
        self.fault: Failure | None = None
        """Why it cannot be served as it was asked for: found out while nobody waits for it, told when it is sent."""
        self.ways: dict[str, Way] = ask.ways
        self.here: dict[str, Column] = {}
        self.peer: Peer | None = None
        """The fabric's side of it: of this leg, whatever becomes of the connection."""
        self.spans: dict[str, slice] = {}
        """Positions of what was sent last."""
        self._left: dict[str, int] = {}
        """Of each kind, how many of the first items are still to be passed over."""
        self.chunks: list[tuple[str, Chunk]] = []
        self.installments: list[Installment] = []
        self.summed_apart = True
        self.tallies: dict[str, Tally] = {}
        self.counting = threading.Lock()
        self.queued_at = self.started_at = 0.0
        self.said = False
        """Decode was told that it begins."""

    @property
    def key(self) -> tuple[int, str]:
        """Room and attempt."""
        return self.ask.room, self.ask.attempt

    def take(self, sent: Sent) -> str:
        """Note what is sent, without what decode holds; why that cannot be, else empty."""
        here = dict(self.here)
        for kind in sorted(
            sent.indices, key=self.partner.windows.__contains__
        ):  # once it is known whether all of kv is there
            ids, before = sent.indices[kind], here.get(kind)
            surplus = self._surplus(kind, len(ids), here) if before is None and sent.last else None
            if surplus is not None:
                here[kind] = ids[surplus:]
                continue
            if kind not in self._left:
                holds, skipped = self.ask.skip.get(kind, 0), sent.skipped.get(kind, 0)
                if skipped > holds:
                    return f"{kind}: prefill left out the first {skipped} items, decode holds {holds}"
                self._left[kind] = holds - skipped
            over = min(self._left[kind], len(ids))
            self._left[kind] -= over
            here[kind] = ids[over:] if before is None else np.concatenate([before, ids[over:]])
        self.spans = {kind: slice(len(self.here.get(kind, ())), len(ids)) for kind, ids in here.items()}
        self.here = here
        return ""

    def _surplus(self, kind: str, sent: int, here: Mapping[str, Column]) -> int | None:
        """How many items of a window stand before decode's first; None where that is not known. As many pages of kv on
        both sides say that both end with the same page."""
        if kind not in self.partner.windows or "kv" not in here or "kv" not in self.there or kind not in self.there:
            return None
        surplus = sent - len(self.there[kind])
        return surplus if surplus >= 0 and len(here["kv"]) == len(self.there["kv"]) else None

    def cut(self, transport: Transport, *, copies: bool, last: bool) -> Cut:
        """Cut the work for what was sent last. `copies`: whether this side can gather."""
        self.queued_at = self.queued_at or time.monotonic()
        whole = last and not self.installments
        ways = self._ways_of(transport, copies=copies)
        split, limit = self.part.split(ways), self.partner.chunk_bytes
        first = len(self.chunks)
        for kind, strips in split.staged.items():
            self.chunks += [(kind, chunk) for chunk in chunks(strips, *self._bounds(kind, limit))]
        made: list[tuple[str, Chunk]] = []
        for kind, strips in split.packed.items():
            made += [(kind, piece) for piece in pieces(strips, *self._bounds(kind, limit))]
        straight = any(self._sent(kind) for kind in split.direct) if not whole else bool(split.direct)
        samples = sum(self._items(kind) * count for kind, count in self.part.item_copies.items())
        small = straight and not self.chunks and samples <= INLINE_SAMPLES
        alongside = whole and (small or (bool(made) and not straight))  # summed up by the job that writes
        self.summed_apart = self.ask.verify == "full" or not alongside
        self.ways = ways
        self.installments.append(Installment(self.spans, ways, made, not self.summed_apart and not made))
        stops = None if whole else {kind: self._bounds(kind, limit)[0] for kind in split.staged}
        return Cut(straight, bool(made), len(self.chunks) - first, last and self.summed_apart, stops)

    def _ways_of(self, transport: Transport, *, copies: bool) -> dict[str, Way]:
        many = [kind for kind in self.part.strips if self._sent(kind) > FEW]
        if not many:
            return self.ways
        loads = {
            kind: Load(self.part.strips[kind], self.there[kind][self.spans[kind]], self.here[kind][self.spans[kind]])
            for kind in many
        }
        return resolve(self.ask.ways, loads, transport, self.partner.chunk_bytes, copies=copies)

    def _bounds(self, kind: str, limit: int) -> tuple[int, int, int]:
        """Where what was sent last of a kind ends, the size of a chunk, and where it begins."""
        span = self.spans.get(kind, slice(0, 0))
        return span.stop, limit, span.start

    def _sent(self, kind: str) -> int:
        """How many items of a kind were sent last."""
        span = self.spans.get(kind, slice(0, 0))
        return int(span.stop - span.start)

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
