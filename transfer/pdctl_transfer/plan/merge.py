"""Neighbouring copies become one: within a row of the item, over whole rows, and around the end of a row."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Copies:
    """Strided copies of one entry, in bytes; int64 arrays of shape [n], ordered by (src, dst, offset)."""

    src: Column
    dst: Column
    src_offset: Column
    dst_offset: Column
    length: Column
    count: Column
    src_stride: Column
    dst_stride: Column
    pieces: Column

    def __iter__(self) -> Iterator[Column]:
        return (getattr(self, name) for name in self.__slots__)


class Row(NamedTuple):
    """Bytes of one row on each side, and how many rows an item has."""

    src: int
    dst: int
    outer: int


def merge(src: Column, dst: Column, src_offset: Column, dst_offset: Column, length: Column, row: Row) -> Copies:
    """The fewest strided copies for these segments of a row, repeated over all rows.

    Arguments are int64 arrays of shape [n]: ranks, then byte offsets and lengths within a row, in row order for each
    pair of ranks. What is contiguous on both sides becomes one copy.
    """
    order = np.lexsort((dst_offset, dst, src))
    src, dst, src_offset, dst_offset, length = (x[order] for x in (src, dst, src_offset, dst_offset, length))
    new_pair = np.ones(len(src), dtype=bool)
    new_pair[1:] = (src[1:] != src[:-1]) | (dst[1:] != dst[:-1])
    apart = new_pair.copy()
    apart[1:] |= src_offset[1:] != src_offset[:-1] + length[:-1]
    apart[1:] |= dst_offset[1:] != dst_offset[:-1] + length[:-1]
    at = np.flatnonzero(apart)
    pieces = np.diff(at, append=len(src))
    length = np.add.reduceat(length, at)
    src, dst, src_offset, dst_offset = (x[at] for x in (src, dst, src_offset, dst_offset))
    first = np.flatnonzero(new_pair[at])
    flat = np.zeros_like(length)
    if row.outer == 1:
        return Copies(src, dst, src_offset, dst_offset, length, flat + 1, flat, flat, pieces)

    # A copy that is the whole row on both sides is contiguous over all rows.
    whole = (length == row.src) & (length == row.dst)
    copies = Copies(
        src,
        dst,
        src_offset,
        dst_offset,
        length=np.where(whole, length * row.outer, length),
        count=np.where(whole, 1, row.outer),
        src_stride=np.where(whole, 0, row.src),
        dst_stride=np.where(whole, 0, row.dst),
        pieces=pieces * row.outer,
    )
    return _wrap(copies, first, row)


def _wrap(copies: Copies, first: Column, row: Row) -> Copies:
    """A copy at the end of a row, on both sides, meets the one at the start of the next: together they are one.

    `first`: where each pair of ranks begins. The start of the first row and the end of the last stay single.
    """
    last = np.append(first[1:], len(copies.src)) - 1
    end = copies.src_offset[last] + copies.length[last] == row.src
    end &= copies.dst_offset[last] + copies.length[last] == row.dst
    meets = end & (first < last) & (copies.src_offset[first] == 0) & (copies.dst_offset[first] == 0)
    a, b = first[meets], last[meets]
    if not len(a):
        return copies
    rows = row.outer - 1
    out = Copies(*(np.concatenate([column, column[b]]) for column in copies))
    middle = np.arange(len(copies.src), len(out.src))
    out.length[middle] += out.length[a]
    out.count[middle] = rows
    out.pieces[middle] = (copies.pieces[a] + copies.pieces[b]) // row.outer * rows
    out.src_offset[b] += rows * row.src
    out.dst_offset[b] += rows * row.dst
    for single in (a, b):
        out.count[single] = 1
        out.pieces[single] //= row.outer
    for stride in (out.src_stride, out.dst_stride):
        stride[out.count == 1] = 0
    return Copies(*(column[np.lexsort((out.dst_offset, out.dst, out.src))] for column in out))
