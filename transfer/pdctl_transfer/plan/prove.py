"""An independent judge of a plan: every byte of every decode item once, from the right place, within bounds.

It shares no code with the planner. From the sharding rule it enumerates, unit by unit, what each rank holds, follows
every copy of the plan, and compares what arrives with what belongs there.
"""

from collections.abc import Iterator
from itertools import product
from math import gcd
from typing import Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.plan.columns import Column, Plan, RankId
from pdctl_transfer.plan.expected import Target, held_units, targets

What = Literal[
    "twice",  # written more than once
    "never",  # not written
    "wrong source",  # written with bytes that belong elsewhere
    "past the source item",
    "past the destination item",
    "no such entry",  # the plan names a rank or an entry that the layouts do not have
]


class Fault(Struct, frozen=True):
    """What is wrong with one item of one decode rank: `bytes` of it, the first of them in [start, stop).

    `source` is a prefill rank that is involved, where one is. Past an end, the range is of the item that it leaves.
    """

    what: What
    kind: str
    layer: int | None
    tensor: str
    n: int
    rank: RankId
    start: int
    stop: int
    bytes: int
    source: RankId | None = None


class Proof(NamedTuple):
    """What was proved: how many items of decode ranks, how many bytes in them, and what is wrong with them."""

    faults: tuple[Fault, ...]
    items: int
    bytes: int


class _Found(NamedTuple):
    what: What
    start: int
    stop: int
    bytes: int
    source: int | None


class _Rows(NamedTuple):
    """The copies into one item; int64 arrays of shape [n]. `strange`: they read an entry that is not the partner."""

    src_tp: Column
    src_offset: Column
    dst_offset: Column
    length: Column
    repeats: Column
    src_stride: Column
    dst_stride: Column
    strange: Column


def prove(plan: Plan, prefill: Manifest, decode: Manifest) -> Proof:
    """Follow the whole plan for these layouts. Items whose layouts and copies are equal are judged once."""
    wanted = targets(prefill, decode)
    rows, strays = _rows_by_item(plan, wanted, decode.parallel.attn_tp, prefill.parallel.attn_tp)
    found: list[Fault] = list(strays)
    judged: dict[object, tuple[_Found, ...]] = {}
    items = moved = 0
    for target, tp in product(wanted.values(), range(decode.parallel.attn_tp)):
        if target.dst.item_len == 0:
            continue
        mine = rows.get((target.dst_pp, target.index, tp), _NO_ROWS)
        shape = (target.src_shape, target.dst_shape, tp, *(column.tobytes() for column in mine))
        if shape not in judged:
            check = _Item(target.src, prefill.parallel.attn_tp, target.dst, decode.parallel.attn_tp, tp)
            judged[shape] = tuple(check.judge(mine))
        items += 1
        moved += target.dst.item_len
        for what, start, stop, size, source in judged[shape]:
            src = None if source is None else RankId(target.src_pp, source)
            name = (target.kind, target.layer, target.tensor, target.n)
            found.append(Fault(what, *name, RankId(target.dst_pp, tp), start, stop, size, src))
    return Proof(tuple(found), items, moved)


_NO_ROWS = _Rows(*(np.zeros(0, dtype=np.int64) for _ in _Rows._fields))


def _rows_by_item(
    plan: Plan, wanted: dict[tuple[int, int], Target], dst_tp: int, src_tp: int
) -> tuple[dict[tuple[int, int, int], _Rows], list[Fault]]:
    """The plan's rows by (decode stage, entry, rank), and faults for rows that lead nowhere."""
    columns = plan.columns
    by_item: dict[tuple[int, int, int], list[NDArray[np.int64]]] = {}
    strays: list[Fault] = []
    order = np.lexsort((columns.dst_tp, columns.pair))
    keys = np.stack([columns.pair[order], columns.dst_tp[order]])
    starts = np.flatnonzero(np.any(np.diff(keys, axis=1, prepend=-1), axis=0)) if len(order) else order
    for at in np.split(order, starts[1:]):
        if not len(at):
            continue
        pair, tp = plan.pairs[int(columns.pair[at[0]])], int(columns.dst_tp[at[0]])
        target = wanted.get((pair.dst_pp, pair.dst_index))
        outside = (columns.src_tp[at] < 0) | (columns.src_tp[at] >= src_tp)
        outside |= (columns.src_pp[at] != pair.src_pp) | (columns.dst_pp[at] != pair.dst_pp)
        if target is None or not 0 <= tp < dst_tp:
            outside[:] = True
        if np.any(outside):
            size = int((columns.length[at] * columns.count[at])[outside].sum())
            name = (pair.kind, pair.layer, pair.tensor, pair.n)
            strays.append(Fault("no such entry", *name, RankId(pair.dst_pp, tp), 0, pair.dst_item_len, size))
            at = at[~outside]
        if target is not None and len(at):
            strange = (pair.src_pp, pair.src_index) != (target.src_pp, target.src_index)
            copies = [columns.src_tp, columns.src_offset, columns.dst_offset, columns.length]
            copies += [columns.count, columns.src_stride, columns.dst_stride]
            part = np.stack([*(column[at] for column in copies), np.full(len(at), int(strange))])
            by_item.setdefault((pair.dst_pp, pair.dst_index, tp), []).append(part)
    return {key: _Rows(*np.concatenate(parts, axis=1)) for key, parts in by_item.items()}, strays


class _Item:
    """One item of one decode rank, judged in granules: the largest size that divides every number involved."""

    def __init__(self, src: Entry, src_tp: int, dst: Entry, dst_tp: int, rank: int) -> None:
        self.src, self.src_tp, self.dst, self.dst_tp, self.rank = src, src_tp, dst, dst_tp, rank

    def judge(self, rows: _Rows) -> Iterator[_Found]:
        """What is wrong with the item. A row that leaves it counts as not there."""
        kept, outside = self._within_bounds(rows)
        yield from outside
        numbers = (kept.src_offset, kept.dst_offset, kept.length, kept.src_stride, kept.dst_stride)
        inner = gcd(self.src.inner_bytes, self.dst.inner_bytes)
        grain = int(np.gcd.reduce(np.concatenate(numbers), initial=inner))
        belongs = _content(self.dst, self.dst_tp, self.rank, grain, np.arange(self.dst.item_len // grain))
        row, src_at, dst_at = _granules(kept, grain)
        arrives = np.full(len(row), -1, dtype=np.int64)
        for tp in np.unique(kept.src_tp).tolist():
            here = (kept.src_tp[row] == tp) & (kept.strange[row] == 0)
            arrives[here] = _content(self.src, self.src_tp, tp, grain, src_at[here])
        times = np.bincount(dst_at, minlength=len(belongs))
        wrong = arrives != belongs[dst_at]
        yield from _ranges("twice", np.flatnonzero(times > 1), grain)
        yield from _ranges("never", np.flatnonzero(times == 0), grain)
        source = int(kept.src_tp[row[wrong]][0]) if np.any(wrong) else None
        yield from _ranges("wrong source", np.unique(dst_at[wrong]), grain, source)

    def _within_bounds(self, rows: _Rows) -> tuple[_Rows, list[_Found]]:
        """The rows that stay inside both items, and a fault for each side that others leave, with the farthest."""
        repeats = np.where(rows.length > 0, rows.repeats, 0)
        # A copy onto itself is proved twice by its first repetition; the rest would only cost time.
        repeats = np.where(rows.dst_stride < rows.length, np.minimum(repeats, 2), repeats)
        sides: tuple[tuple[What, Column, Column, int], ...] = (
            ("past the source item", rows.src_offset, rows.src_stride, self.src.item_len),
            ("past the destination item", rows.dst_offset, rows.dst_stride, self.dst.item_len),
        )
        found = []
        keep = repeats > 0
        for what, offset, stride, size in sides:
            last = offset + (repeats - 1) * stride
            low, high = np.minimum(offset, last), np.maximum(offset, last) + rows.length
            outside = (repeats > 0) & ((low < 0) | (high > size))
            if np.any(outside):
                far = int(np.argmax(np.where(outside, np.maximum(high - size, -low), 0)))
                start, stop = (size, int(high[far])) if high[far] > size else (int(low[far]), 0)
                found.append(_Found(what, start, stop, stop - start, int(rows.src_tp[far])))
                keep &= ~outside
        return _Rows(*(column[keep] for column in rows._replace(repeats=repeats))), found


def _granules(rows: _Rows, grain: int) -> tuple[Column, Column, Column]:
    """Every granule that is copied: its row, and its place in the source and in the destination item."""
    per_copy = np.repeat(rows.length // grain, rows.repeats)
    row = np.repeat(np.arange(len(rows.length)), rows.repeats)
    step = np.arange(len(row)) - np.repeat(np.cumsum(rows.repeats) - rows.repeats, rows.repeats)
    src = (rows.src_offset[row] + step * rows.src_stride[row]) // grain
    dst = (rows.dst_offset[row] + step * rows.dst_stride[row]) // grain
    inside = np.arange(int(per_copy.sum())) - np.repeat(np.cumsum(per_copy) - per_copy, per_copy)
    return np.repeat(row, per_copy), np.repeat(src, per_copy) + inside, np.repeat(dst, per_copy) + inside


def _content(entry: Entry, tp: int, rank: int, grain: int, at: Column) -> Column:
    """Which logical granule (row, unit of the whole axis, part of the unit) the rank holds at these places."""
    own = held_units(entry, tp, rank)
    per_unit = entry.inner_bytes // grain
    outer, rest = np.divmod(at, len(own) * per_unit)
    unit, part = np.divmod(rest, per_unit)
    units = sum(group.heads * group.width for group in entry.groups)
    content: Column = (outer * units + own[unit]) * per_unit + part
    return content


def _ranges(what: What, at: Column, grain: int, source: int | None = None) -> Iterator[_Found]:
    """One fault for these granules: their number, and the first contiguous range of them."""
    if len(at):
        gap = np.flatnonzero(np.diff(at) != 1)
        stop = int(at[gap[0]] if len(gap) else at[-1]) + 1
        yield _Found(what, int(at[0]) * grain, stop * grain, len(at) * grain, source)
