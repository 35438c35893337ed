"""The plan as columns: one row a strided copy inside an item, int64 arrays, no object per copy."""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Column = NDArray[np.int64]


class HasRank(Protocol):
    """Anything that says a pipeline rank and an attention-TP rank."""

    @property
    def pp(self) -> int: ...
    @property
    def tp(self) -> int: ...


class RankId(NamedTuple):
    """A rank of one side."""

    pp: int
    tp: int


class PlannedPair(Struct, frozen=True, gc=False):
    """Two entries that the plan connects. `src_index` and `dst_index` count the entries of their stages in order, as
    a rank's regions do; item lengths are those of one rank, in bytes."""

    kind: str
    layer: int | None
    tensor: str
    n: int
    src_pp: int
    dst_pp: int
    src_index: int
    dst_index: int
    src_item_len: int
    dst_item_len: int

    def spelled(self) -> bytes:
        """All of it, for the digest: layer as a flag and a number."""
        texts = (text.encode() for text in (self.kind, self.tensor))
        layer = (0, 0) if self.layer is None else (1, self.layer)
        places = self.n, self.src_pp, self.dst_pp, self.src_index, self.dst_index, self.src_item_len, self.dst_item_len
        return b"".join(_numbers(len(text)) + text for text in texts) + _numbers(*layer, *places)


@dataclass(frozen=True, slots=True)
class Columns:
    """Int64 arrays of shape [rows]. Row i is `count[i]` copies of `length[i]` bytes of the pair `pair[i]`; copy j reads
    at src_offset + j · src_stride of the source item and writes at dst_offset + j · dst_stride of the destination's.
    `pieces`: the copies it was before merging, one a row of the item and overlap of head ranges.
    """

    pair: Column
    src_pp: Column
    src_tp: Column
    dst_pp: Column
    dst_tp: Column
    src_offset: Column
    dst_offset: Column
    length: Column
    count: Column
    src_stride: Column
    dst_stride: Column
    pieces: Column

    def __iter__(self) -> Iterator[Column]:
        return (getattr(self, name) for name in self.__slots__)

    def __len__(self) -> int:
        return len(self.pair)

    def where(self, rows: NDArray[np.bool_] | Column) -> "Columns":
        """The rows that a mask or indices select."""
        return Columns(*(column[rows] for column in self))


class LineRank(Struct, frozen=True):
    """A rank, as `pdctl.plan/v1` spells it."""

    pp: int
    tp: int


class Line(Struct, frozen=True):
    """One row as `pdctl.plan/v1` spells it; for printing."""

    kind: str
    layer: int | None
    tensor: str
    n: int
    src: LineRank
    dst: LineRank
    src_offset: int
    dst_offset: int
    length: int
    count: int
    src_stride: int
    dst_stride: int


class Stats(NamedTuple):
    """Sums over a plan, for one item of every entry."""

    bytes: int
    pieces: int
    copies: int
    rows: int


@dataclass(frozen=True, eq=False)
class Plan:
    """The address-free plan of one pair of layouts, or a part of one. Rows are ordered by pair, source, destination.

    `prefill_tp`, `decode_tp`: attention-TP sizes. Narrowing (`for_source`, …) keeps `pairs` whole, so that the column
    `pair` means the same in every part.
    """

    pairs: tuple[PlannedPair, ...]
    columns: Columns
    prefill_tp: int
    decode_tp: int

    def for_source(self, rank: HasRank) -> "Plan":
        """What this prefill rank writes."""
        return self._where((self.columns.src_pp == rank.pp) & (self.columns.src_tp == rank.tp))

    def for_destination(self, rank: HasRank) -> "Plan":
        """What is written into this decode rank."""
        return self._where((self.columns.dst_pp == rank.pp) & (self.columns.dst_tp == rank.tp))

    def between(self, src: HasRank, dst: HasRank) -> "Plan":
        """What one prefill rank writes into one decode rank."""
        return self.for_source(src).for_destination(dst)

    def of_pairs(self, pairs: Column) -> "Plan":
        """The rows of these pairs, given by their indices in `pairs`."""
        return self._where(np.isin(self.columns.pair, pairs))

    def sources_of(self, dst: HasRank) -> tuple[RankId, ...]:
        """The prefill ranks that write into this decode rank, in order."""
        part = self.for_destination(dst).columns
        return _ranks(part.src_pp, part.src_tp)

    def destinations_of(self, src: HasRank) -> tuple[RankId, ...]:
        """The decode ranks that this prefill rank writes into, in order."""
        part = self.for_source(src).columns
        return _ranks(part.dst_pp, part.dst_tp)

    @cached_property
    def stats(self) -> Stats:
        """Bytes and copies, before (`pieces`) and after (`copies`) merging."""
        columns = self.columns
        moved = int((columns.length * columns.count).sum())
        return Stats(moved, int(columns.pieces.sum()), int(columns.count.sum()), len(columns))

    @cached_property
    def digest(self) -> str:
        """sha256 over the plan's pairs and columns: equal on two hosts exactly if they would move the same bytes.

        Over bytes that no other plan has: numbers are little-endian int64, a text is its length and UTF-8.
        """
        sha = hashlib.sha256(b"pdctl.plan/v1")
        sha.update(_numbers(self.prefill_tp, self.decode_tp, len(self.pairs), len(self.columns)))
        for pair in self.pairs:
            sha.update(pair.spelled())
        *columns, _ = self.columns  # how many pieces were merged moves no byte
        for column in columns:
            sha.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
        return f"sha256:{sha.hexdigest()}"

    def lines(self) -> Iterator[Line]:
        """The rows as objects, for printing; a plan of millions of rows stays in columns."""
        for row in zip(*(column.tolist() for column in self.columns), strict=True):
            p, src_pp, src_tp, dst_pp, dst_tp, src_offset, dst_offset, length, count, src_stride, dst_stride, _ = row
            pair = self.pairs[p]
            src, dst = LineRank(src_pp, src_tp), LineRank(dst_pp, dst_tp)
            copy = (src_offset, dst_offset, length, count, src_stride, dst_stride)
            yield Line(pair.kind, pair.layer, pair.tensor, pair.n, src, dst, *copy)

    def _where(self, mask: NDArray[np.bool_]) -> "Plan":
        return Plan(self.pairs, self.columns.where(mask), self.prefill_tp, self.decode_tp)


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _ranks(pp: Column, tp: Column) -> tuple[RankId, ...]:
    return tuple(sorted({RankId(*rank) for rank in zip(pp.tolist(), tp.tolist(), strict=True)}))
