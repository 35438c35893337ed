"""Rows out of items into packed form, and back, by the CPU: one strided assignment for as much as possible."""

import ctypes
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.session.bytes.kept import Kept
from pdctl_transfer.session.bytes.packing import Chunk, Column, Copy, Segment, breaks, id_runs

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]

RUN_BYTES: Final = 16 << 10
"""Rows whose runs are shorter than this are copied by lists of ids: a tenth of the time of a run each."""
STEP_BYTES: Final = 1 << 18
"""So much at once, which stays in cache."""
WORDS = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


class Buffer(NamedTuple):
    """Memory that a copier allocated, or a part of it. `owner` keeps it alive."""

    base: int
    nbytes: int
    owner: object

    def part(self, at: int, nbytes: int) -> "Buffer":
        """`nbytes` from byte `at` on."""
        return Buffer(self.base + at, nbytes, self.owner)


class Memory(Kept):
    """A rank's regions as byte arrays, and what is made of them, once."""

    def __init__(self, regions: Sequence[Region]) -> None:
        super().__init__()
        self.regions = tuple(regions)
        self._arrays: dict[int, Bytes] = {}

    def bytes(self, index: int) -> Bytes:
        """Region number `index`, from its first byte to its last. TransferError PD4016 out of the CPU's reach."""
        if index not in self._arrays:
            region = self.regions[index]
            if region.where != CPU:
                raise TransferError(f"region {index} lies on {region.where}, out of the CPU's reach", code="PD4016")
            self._arrays[index] = at_address(region.base, region.nbytes)
        return self._arrays[index]

    def items(self, index: int) -> Bytes:
        """Region number `index`, bytes of shape [items][item_len]. Raises as `bytes`."""
        region = self.regions[index]
        shape, strides = (region.items, region.item_len), (region.step, 1)
        array: Bytes = np.ndarray(shape, np.uint8, self.bytes(index).data, strides=strides)
        return array


def at_address(base: int, nbytes: int) -> Bytes:
    """The memory at an address as an array. It must stay mapped while the array is used."""
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(base)), dtype=np.uint8)


_slot = lru_cache(maxsize=256)(at_address)
"""The same few slots come again and again."""


def widest_word(*numbers: int) -> int:
    """The widest word, of 1, 2, 4 or 8 bytes, that divides all of the numbers."""
    return math.gcd(8, *numbers)


def strided(memory: Bytes, items: int, step: int, offset: int, copy: Copy, stride: int, word: int) -> Words:
    """A copy's bytes in all `items`, one each `step` bytes, as words of shape [items][count][length / word]."""
    shape = (items, copy.repeats, copy.length // word)
    strides = (step, stride if copy.repeats > 1 else copy.length, word)
    array: Words = np.ndarray(shape, WORDS[word], buffer=memory.data, offset=offset, strides=strides)
    return array


def gather(memory: Memory, segment: Segment, ids: Column, into: Buffer) -> None:
    """Pack a segment of source items into its place in a chunk."""
    strip = segment.strip
    held, region = memory.bytes(strip.src_index), memory.regions[strip.src_index]
    count = segment.stop - segment.start
    whole = _slot(into.base, into.nbytes)[segment.at : segment.at + count * strip.bytes]
    runs = spans(ids[segment.start : segment.stop], strip.bytes)
    for copy in strip.copies:
        places = (region.base, into.base + segment.at, copy.src_offset, copy.at)
        word = widest_word(strip.src_step, copy.src_stride, copy.length, strip.bytes, *places)
        items = strided(held, region.items, strip.src_step, copy.src_offset, copy, copy.src_stride, word)
        packed = strided(whole, count, strip.bytes, copy.at, copy, copy.length, word)
        for at, which in runs:
            packed[at] = items[which]


def spans(ids: Column, row_bytes: int) -> list[tuple[slice, slice | Column]]:
    """Assignments that together cover items with these ids: positions in packed form, and the items there. One a run of
    consecutive ids, or one a step where runs are short."""
    cuts = breaks(ids)
    if len(cuts) and (len(cuts) + 1) * RUN_BYTES > len(ids) * row_bytes:
        step = max(1, STEP_BYTES // row_bytes)
        return [(slice(at, at + step), ids[at : at + step]) for at in range(0, len(ids), step)]
    return [(slice(at, at + run), slice(first, first + run)) for at, first, run in id_runs(ids, cuts)]


class Lot(NamedTuple):
    """A chunk in packed form, and the ids of its kind's items, of which it fills some."""

    chunk: Chunk
    ids: Column
    packed: Buffer


class Row(NamedTuple):
    """A copy of a segment: for each of its items the same bytes. `at`: address of the first in packed form."""

    segment: Segment
    ids: Column
    copy: Copy
    at: int


def scatter(memory: Memory, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> None:
    """Unpack chunks into the items they fill, or one of `parts` equal shares of their items.

    Copies of several chunks that stand at equal distances from each other, in packed form as in the items, are one
    assignment, which writes an item from front to back. Where they lie in each other's gaps that costs half of what
    they cost one after the other.
    """
    for rows in abreast(lots):
        segment, ids = rows[0].segment, rows[0].ids
        count = segment.stop - segment.start
        first, stop = count * part // parts, count * (part + 1) // parts
        items, packed = _views(memory, rows)
        share = packed[first:stop]
        for at, which in spans(ids[segment.start + first : segment.start + stop], segment.strip.bytes * len(rows)):
            items[which] = share[at]


def abreast(lots: Sequence[Lot]) -> Iterator[list[Row]]:
    """Rows that fill the same items in the same pattern, by destination, where distances are equal; others alone."""
    alike: dict[tuple[int, ...], list[Row]] = {}
    for chunk, ids, packed in lots:
        base = packed.base
        for segment in chunk:
            strip = segment.strip
            where = (strip.dst_index, segment.start, segment.stop, strip.bytes)
            for number, copy in enumerate(strip.copies):
                key = (*where, number, copy.length, copy.repeats, copy.dst_stride)
                alike.setdefault(key, []).append(Row(segment, ids, copy, base + segment.at + copy.at))
    for rows in alike.values():
        rows.sort(key=lambda row: row.copy.dst_offset)
        steps = {(b.copy.dst_offset - a.copy.dst_offset, b.at - a.at) for a, b in pairwise(rows)}
        if len(steps) <= 1:
            yield rows
        else:
            yield from ([row] for row in rows)


def _views(memory: Memory, rows: list[Row]) -> tuple[Words, Words]:
    """All items of the region, and the segment's in packed form: [items][repeats][rows][words]."""
    segment, _, copy, at = rows[0]
    strip = segment.strip
    step, apart = 0, 0
    if len(rows) > 1:
        step, apart = rows[1].copy.dst_offset - copy.dst_offset, rows[1].at - at
    held, region = memory.bytes(strip.dst_index), memory.regions[strip.dst_index]
    count, stride = segment.stop - segment.start, copy.dst_stride if copy.repeats > 1 else copy.length
    word = widest_word(strip.dst_step, copy.dst_offset, copy.length, stride, region.base, at, strip.bytes, step, apart)
    inner = (copy.repeats, len(rows), copy.length // word)
    items: Words = np.ndarray(
        (region.items, *inner),
        WORDS[word],
        buffer=held.data,
        offset=copy.dst_offset,
        strides=(strip.dst_step, stride, step, word),
    )
    low = min(at, rows[-1].at)
    span = abs(rows[-1].at - at) + (count - 1) * strip.bytes + copy.repeats * copy.length
    packed: Words = np.ndarray(
        (count, *inner),
        WORDS[word],
        buffer=at_address(low, span).data,
        offset=at - low,
        strides=(strip.bytes, copy.length, apart, word),
    )
    return items, packed
