"""What workers do for the receiving side: put chunks into place, and look at what landed. And what a request wants."""

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.fabric.base import Transport
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.area import Area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Lot
from pdctl_transfer.session.bytes.cost import Load, choose
from pdctl_transfer.session.bytes.packing import Chunk, chunk_bytes, chunks
from pdctl_transfer.session.bytes.verify import verify
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.drive.jobs import Body, Job
from pdctl_transfer.session.options import Verify, Way
from pdctl_transfer.session.wire.messages import More

HANDS: Final = 2
"""Workers that put the chunks of one number into place."""
FEW_SAMPLES: Final = 2048
"""To look at so many costs about as much as to have somebody else do it."""
SHARE_BYTES: Final = 1 << 20
"""They are shared by as many hands as get so much each."""


class Aim:
    """The ids that a request gave, by kind, and what is asked of each source."""

    def __init__(self, indices: dict[str, NDArray[np.int64]], skip: dict[str, int] | None = None) -> None:
        self.indices, self.skip = indices, skip or {}
        self.encoded = {kind: ids.astype("<i8").tobytes() for kind, ids in indices.items()}
        self.parts: dict[RankId, Part] = {}
        self.ways: dict[RankId, dict[str, Way]] = {}
        self.chunks: dict[RankId, list[tuple[str, Chunk]]] = {}
        self._stops: dict[RankId, dict[str, int]] = {}
        """Of sources that send in installments: by kind, how many items were told of."""
        self._limits: dict[RankId, int] = {}
        self.names: dict[RankId, str] = {}
        self.samples = 0
        """How many copies of an item are looked at by `verify: sample`."""
        self.seconds: dict[tuple[RankId, str], float] = {}
        """Time spent putting chunks into place, by source and kind."""

    def ask(
        self, rank: RankId, part: Part, transport: Transport, chunk_bytes: int, able: frozenset[Way]
    ) -> dict[str, Way]:
        """How each kind travels from this source; decided once."""
        if rank not in self.ways:
            ways: dict[str, Way] = {}
            for kind, strips in part.strips.items():
                ids = self.indices.get(kind)
                self.samples += part.item_copies[kind] * (0 if ids is None else len(ids))
                if ids is not None and len(ids):
                    ways[kind] = choose(Load(strips, ids), transport, chunk_bytes, able)
            staged = part.split(ways).staged
            self.parts[rank], self.ways[rank], self._limits[rank] = part, ways, chunk_bytes
            self.chunks[rank] = [
                (kind, chunk)
                for kind, strips in staged.items()
                for chunk in chunks(strips, len(self.indices[kind]), chunk_bytes)
            ]
        return self.ways[rank]

    def extend(self, rank: RankId, more: More) -> int | None:
        """How many chunks an installment of a source has, which are numbered on from those before; None where it is
        none of what was asked for."""
        if rank not in self._stops:
            self._stops[rank], self.chunks[rank] = {}, []
        told, before = self._stops[rank], len(self.chunks[rank])
        staged = self.parts[rank].split(self.ways[rank]).staged
        if staged.keys() != more.stops.keys():
            return None
        for kind, strips in staged.items():
            start, stop, count = told.get(kind, 0), more.stops[kind], len(self.indices[kind])
            if not start <= stop <= count or (more.last and stop != count):
                return None
            told[kind] = stop
            self.chunks[rank] += [(kind, chunk) for chunk in chunks(strips, stop, self._limits[rank], start)]
        return len(self.chunks[rank]) - before

    def place(self, copier: Copier, area: Area, number: int, slots: Sequence[tuple[RankId, int]]) -> list[Body]:
        """Bodies of a job that puts chunks of one number into place, one a hand."""
        lots = []
        for rank, slot in slots:
            kind, chunk = self.chunks[rank][number]
            lots.append(Lot(chunk, self.indices[kind], area.buffer(slot)))
        hands = max(1, min(HANDS, sum(chunk_bytes(lot.chunk) for lot in lots) // SHARE_BYTES))

        def share_of(share: int) -> Body:
            def body(job: Job) -> str:
                began = time.monotonic()
                copier.scatter(lots, share, hands)
                copier.done()
                spent = (time.monotonic() - began) / len(slots)
                with job.lock:
                    for rank, _ in slots:
                        key = (rank, self.chunks[rank][number][0])
                        self.seconds[key] = self.seconds.get(key, 0.0) + spent
                return ""

            return body

        return [share_of(share) for share in range(hands)]

    def check(self, copier: Copier, how: Verify, sums: Sequence[tuple[RankId, dict[str, int]]]) -> Body:
        """Body of a job that looks at all that landed."""

        def body(job: Job) -> str:
            copier.done()
            return verify([(self.parts[rank], sent) for rank, sent in sums], copier, self.indices, how)

        return body
