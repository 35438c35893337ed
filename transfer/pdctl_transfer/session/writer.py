"""Blocks of packed rows: from items or scratch on this side, into staging or items on the other."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.fabric.base import Blocks
from pdctl_transfer.session.options import Region
from pdctl_transfer.session.packing import Chunk, Memory, Segment, Strip, gather

Column = NDArray[np.int64]
Bytes = NDArray[np.uint8]

GATHER_BELOW: Final = 1 << 16
"""Source runs shorter than this are gathered: a copy of so much costs less than the block it saves."""


class Scratch(NamedTuple):
    """Registered memory of this side, as large as a chunk."""

    base: int
    bytes: Bytes


def needs_scratch(chunk: Chunk, ids: Column) -> bool:
    """Whether something of a staged chunk must be gathered first."""
    return any(_gathered(segment, ids) for segment in chunk)


def staged_blocks(memory: Memory, chunk: Chunk, ids: Column, base: int, scratch: Scratch | None) -> Blocks:
    """Blocks that bring a chunk to `base`: long runs of source items as they are, the rest out of scratch."""
    parts: list[Blocks] = []
    first = end = -1
    for segment in chunk:
        if not _gathered(segment, ids):
            parts.append(_source_runs(memory.regions, segment, ids, base + segment.at))
            continue
        assert scratch is not None
        gather(memory, segment, ids, scratch.bytes)
        if end == segment.at:
            parts[-1].length[0] += segment.bytes
        else:
            first = segment.at
            parts.append(_one(scratch.base + first, base + first, segment.bytes))
        end = segment.at + segment.bytes
    return _joined(parts)


def packed_blocks(
    memory: Memory, chunk: Chunk, ids: Column, there: Sequence[Region], there_ids: Column, scratch: Scratch
) -> Blocks:
    """Blocks that bring a chunk out of scratch to where the receiver holds its rows in one piece."""
    parts = []
    for segment in chunk:
        gather(memory, segment, ids, scratch.bytes)
        strip = segment.strip
        at = scratch.base + segment.at
        parts.append(
            _item_runs(strip.dst_item, strip, there_ids[segment.start : segment.stop], at, there, to_items=True)
        )
    return _joined(parts)


def _gathered(segment: Segment, ids: Column) -> bool:
    strip = segment.strip
    if strip.src_run < 0:
        return True
    mine = ids[segment.start : segment.stop]
    runs = 1 + int(np.count_nonzero(np.diff(mine) != 1)) if strip.bytes == strip.src_item else len(mine)
    return segment.bytes < runs * GATHER_BELOW


def _source_runs(here: Sequence[Region], segment: Segment, ids: Column, base: int) -> Blocks:
    strip = segment.strip
    return _item_runs(strip.src_item, strip, ids[segment.start : segment.stop], base, here, to_items=False)


def _item_runs(
    item: int, strip: Strip, ids: Column, packed: int, regions: Sequence[Region], *, to_items: bool
) -> Blocks:
    """Blocks between packed rows at address `packed` and items; whole items that follow each other are one block."""
    start = np.arange(len(ids), dtype=np.int64)
    count = np.ones_like(ids)
    if strip.bytes == item:
        start = np.flatnonzero(np.concatenate([[True], np.diff(ids) != 1]))
        count = np.diff(start, append=len(ids))
    index, run = (strip.dst_index, strip.dst_run) if to_items else (strip.src_index, strip.src_run)
    items = regions[index].base + ids[start] * item + run
    rows = packed + start * strip.bytes
    return Blocks(rows, items, count * strip.bytes) if to_items else Blocks(items, rows, count * strip.bytes)


def _one(src: int, dst: int, length: int) -> Blocks:
    return Blocks(*(np.array([value], dtype=np.int64) for value in (src, dst, length)))


def _joined(parts: Iterable[Blocks]) -> Blocks:
    return Blocks(*(np.concatenate(column) for column in zip(*parts, strict=True)))
