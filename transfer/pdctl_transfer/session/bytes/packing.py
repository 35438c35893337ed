"""Rows of items in packed form: what a rank sends of an item, back to back.

A *strip* is what one entry pair contributes: for each item the same strided copies. Packed, a strip is an array
`[items][bytes]`. Strips follow each other in plan order; chunks cut that sequence at item boundaries.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.plan import Plan

Column = NDArray[np.int64]

GATHER_BELOW: Final = 1 << 16
"""Pieces of a source shorter than this are gathered: a copy of so much costs less than the block it saves."""
PIECE_BYTES: Final = 4 << 20
"""What is gathered for several ranks is written in pieces of this size, none larger than a chunk. Smaller ones would be
sooner on the wire, but each costs some bookkeeping.
"""


class Copy(NamedTuple):
    """`repeats` copies of `length` bytes within an item; `at` is where they stand in the packed item."""

    src_offset: int
    dst_offset: int
    length: int
    repeats: int
    src_stride: int
    dst_stride: int
    at: int


class Steps(NamedTuple):
    """Bytes from item to item in each region of two ranks; empty for a rank whose items follow each other."""

    src: tuple[int, ...]
    dst: tuple[int, ...]


TIGHT: Final = Steps((), ())


class Strip(NamedTuple):
    """One entry pair's copies.

    bytes: of a packed item. src_run, dst_run: where in the source's or destination's item the packed item stands as it
    is, -1 where it is scattered. src_step, dst_step: bytes from item to item in the two ranks' memory.
    """

    src_index: int
    dst_index: int
    src_step: int
    dst_step: int
    bytes: int
    src_run: int
    dst_run: int
    copies: tuple[Copy, ...]

    @property
    def pays(self) -> bool:
        """Whether gathering the items can save blocks where the receiver holds them in one piece: they are scattered
        here, or short and whole items there, which then follow each other whatever they do here."""
        return self.src_run < 0 or (self.bytes == self.dst_step and self.bytes < GATHER_BELOW)


class Segment(NamedTuple):
    """Items `[start, stop)` of a strip, at byte `at` of a chunk."""

    strip: Strip
    start: int
    stop: int
    at: int

    @property
    def bytes(self) -> int:
        """Packed bytes."""
        return (self.stop - self.start) * self.strip.bytes


Chunk = tuple[Segment, ...]


def strips(plan: Plan, rows: Column, steps: Steps = TIGHT) -> tuple[Strip, ...]:
    """The strips of these rows of a plan between two ranks, one a pair, in plan order."""
    columns = plan.columns.where(rows)
    table = np.stack(
        [
            columns.pair,
            columns.src_offset,
            columns.dst_offset,
            columns.length,
            columns.count,
            columns.src_stride,
            columns.dst_stride,
        ],
        axis=1,
    )
    by_pair: dict[int, list[Copy]] = {}
    sizes: dict[int, int] = {}
    for pair, src_offset, dst_offset, length, repeats, src_stride, dst_stride in table.tolist():
        at = sizes.get(pair, 0)
        copy = Copy(src_offset, dst_offset, length, repeats, src_stride, dst_stride, at)
        by_pair.setdefault(pair, []).append(copy)
        sizes[pair] = at + length * repeats
    made = []
    for pair, copies in by_pair.items():
        about = plan.pairs[pair]
        src = _run((c.src_offset, c.src_stride, c) for c in copies)
        dst = _run((c.dst_offset, c.dst_stride, c) for c in copies)
        apart = (
            steps.src[about.src_index] if steps.src else about.src_item_len,
            steps.dst[about.dst_index] if steps.dst else about.dst_item_len,
        )
        made.append(Strip(about.src_index, about.dst_index, *apart, sizes[pair], src, dst, tuple(copies)))
    return tuple(made)


def _run(places: Iterator[tuple[int, int, Copy]]) -> int:
    """Where the copies begin if they follow each other without a gap in packed order; else -1."""
    start = -1
    for offset, stride, copy in places:
        if copy.repeats > 1 and stride != copy.length:
            return -1
        if start < 0:
            start = offset - copy.at
        if offset != start + copy.at:
            return -1
    return start


def chunks(parts: Sequence[Strip], items: int, limit: int, first: int = 0) -> tuple[Chunk, ...]:
    """Cut packed items `[first, items)` of all strips into chunks of at most `limit` bytes; a larger item is one of its
    own."""
    made: list[Chunk] = []
    open_chunk: list[Segment] = []
    used = 0
    for strip in parts:
        start = first
        while start < items:
            fits = (limit - used) // strip.bytes
            if fits < 1 and open_chunk:
                made.append(tuple(open_chunk))
                open_chunk, used = [], 0
                continue
            stop = min(items, start + max(fits, 1))
            open_chunk.append(Segment(strip, start, stop, used))
            used += (stop - start) * strip.bytes
            start = stop
    if open_chunk:
        made.append(tuple(open_chunk))
    return tuple(made)


def pieces(parts: Sequence[Strip], items: int, chunk_bytes: int, first: int = 0) -> tuple[Chunk, ...]:
    """The chunks in which packed items `[first, items)` are gathered and written."""
    return chunks(parts, items, min(PIECE_BYTES, chunk_bytes), first)


def chunk_bytes(chunk: Chunk) -> int:
    """Packed bytes of a chunk."""
    last = chunk[-1]
    return last.at + last.bytes


def breaks(ids: Column) -> Column:
    """Positions at which an id does not follow the one before."""
    cuts: Column = (ids[1:] - ids[:-1] != 1).nonzero()[0] + 1
    return cuts


def id_runs(ids: Column, cuts: Column | None = None) -> list[tuple[int, int, int]]:
    """Runs of consecutive ids: (position of the first, the first id, how many). `cuts`: their `breaks`, where known."""
    if not len(ids):
        return []
    if cuts is None:
        cuts = breaks(ids)
    if not len(cuts):
        return [(0, int(ids[0]), len(ids))]
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(starts, append=len(ids))
    return list(zip(starts.tolist(), ids[starts].tolist(), lengths.tolist(), strict=True))
