"""Rows of items in packed form: what a rank sends of an item, back to back, and how it gets out of and into items.

A *strip* is what one entry pair contributes: for each item the same strided copies. Packed, a strip is an array
`[items][bytes]`. Strips follow each other in plan order; chunks cut that sequence at item boundaries.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.plan import Plan
from pdctl_transfer.session.options import Region

Column = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]

TURN_BYTES: Final = 1 << 16


class Copy(NamedTuple):
    """`repeats` copies of `length` bytes within an item; `at` is where they stand in the packed item."""

    src_offset: int
    dst_offset: int
    length: int
    repeats: int
    src_stride: int
    dst_stride: int
    at: int


class Strip(NamedTuple):
    """One entry pair's copies.

    bytes: of a packed item. src_run, dst_run: where in the source's or destination's item the packed item stands as it
    is, -1 where it is scattered. src_item, dst_item: item lengths.
    """

    src_index: int
    dst_index: int
    src_item: int
    dst_item: int
    bytes: int
    src_run: int
    dst_run: int
    copies: tuple[Copy, ...]


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


def strips(plan: Plan, rows: Column) -> tuple[Strip, ...]:
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
        items = (about.src_item_len, about.dst_item_len)
        made.append(Strip(about.src_index, about.dst_index, *items, sizes[pair], src, dst, tuple(copies)))
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


def chunks(parts: Sequence[Strip], items: int, limit: int) -> tuple[Chunk, ...]:
    """Cut `items` packed items of all strips into chunks of at most `limit` bytes; a larger item is one of its own."""
    made: list[Chunk] = []
    open_chunk: list[Segment] = []
    used = 0
    for strip in parts:
        start = 0
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


def chunk_bytes(chunk: Chunk) -> int:
    """Packed bytes of a chunk."""
    last = chunk[-1]
    return last.at + last.bytes


class Memory:
    """A rank's regions as byte arrays, made once."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = regions
        self._arrays: dict[int, Bytes] = {}

    def bytes(self, index: int) -> Bytes:
        """Region number `index`, bytes of shape [items · item_len]."""
        if index not in self._arrays:
            region = self.regions[index]
            self._arrays[index] = at_address(region.base, region.items * region.item_len)
        return self._arrays[index]


def at_address(base: int, nbytes: int) -> Bytes:
    """The memory at an address as an array. It must stay mapped while the array is used."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(base)), dtype=np.uint8)


def words(*numbers: int) -> int:
    """The widest word, of 1, 2, 4 or 8 bytes, that divides all of the numbers."""
    return int(np.gcd.reduce([8, *numbers]))


def strided(memory: Bytes, item: int, offset: int, copy: Copy, stride: int, word: int) -> Words:
    """A copy's bytes in all items of a region, as words of shape [items][count][length / word]."""
    shape = (len(memory) // item, copy.repeats, copy.length // word)
    strides = (item, stride if copy.repeats > 1 else copy.length, word)
    array: Words = np.ndarray(shape, np.dtype(f"u{word}"), buffer=memory.data, offset=offset, strides=strides)
    return array


def gather(memory: Memory, segment: Segment, ids: Column, into: Bytes) -> None:
    """Pack a segment of source items into its place in a chunk's bytes."""
    for items, packed, runs in _views(memory, segment, ids, into, source=True):
        for at, item, run in runs:
            packed[at : at + run] = items[item : item + run]


def scatter_together(memory: Memory, group: Sequence[tuple[Chunk, Column, Bytes]]) -> None:
    """Unpack several chunks, (chunk, ids, bytes) each, a few items of each in turn.

    For chunks of several sources that fill the same items: their copies lie next to each other there, and written close
    together in time they cost two thirds of what they cost one after the other.
    """
    step = TURN_BYTES if len(group) > 1 else sys.maxsize
    turns = [placements(memory, chunk, ids, out_of, step) for chunk, ids, out_of in group]
    for turn in zip_longest(*turns):
        for placement in turn:
            if placement is not None:
                items, packed = placement
                items[...] = packed


def placements(
    memory: Memory, chunk: Chunk, ids: Column, out_of: Bytes, step_bytes: int
) -> Iterator[tuple[Words, Words]]:
    """(destination, source) of each assignment that unpacks a chunk, of about `step_bytes` at most."""
    for segment in chunk:
        step = max(1, step_bytes // segment.strip.bytes)
        for items, packed, runs in _views(memory, segment, ids, out_of, source=False):
            for first, item, run in runs:
                for at in range(0, run, step):
                    stop = min(run, at + step)
                    yield items[item + at : item + stop], packed[first + at : first + stop]


def _views(
    memory: Memory, segment: Segment, ids: Column, chunk: Bytes, *, source: bool
) -> Iterator[tuple[Words, Words, list[tuple[int, int, int]]]]:
    """For each copy of the strip: the items' words, the packed words, and runs (packed item, item, items)."""
    strip = segment.strip
    region = memory.bytes(strip.src_index if source else strip.dst_index)
    item = strip.src_item if source else strip.dst_item
    count = segment.stop - segment.start
    runs = id_runs(ids[segment.start : segment.stop])
    whole = chunk[segment.at : segment.at + count * strip.bytes]
    for copy in strip.copies:
        offset, stride = (copy.src_offset, copy.src_stride) if source else (copy.dst_offset, copy.dst_stride)
        base = memory.regions[strip.src_index if source else strip.dst_index].base
        word = words(item, offset, copy.length, stride, base, segment.at, strip.bytes, copy.at)
        packed = strided(whole, strip.bytes, copy.at, copy, copy.length, word)
        yield strided(region, item, offset, copy, stride, word), packed, runs


def id_runs(ids: Column) -> list[tuple[int, int, int]]:
    """Runs of consecutive ids: (position of the first, the first id, how many)."""
    if not len(ids):
        return []
    cuts = np.flatnonzero(np.diff(ids) != 1) + 1
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(starts, append=len(ids))
    return list(zip(starts.tolist(), ids[starts].tolist(), lengths.tolist(), strict=True))
