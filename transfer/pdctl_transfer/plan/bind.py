"""A plan between two ranks, bound to addresses and index lists: the blocks to write.

No loop over blocks or pages: rows that share an index list and a repeat count become one broadcast addition.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdctl_transfer.errors import BindError
from pdctl_transfer.plan.columns import Column, Columns, Plan


class HasRegion(Protocol):
    """One entry of one rank: an array of `items` items of `item_len` bytes at address `base`."""

    @property
    def base(self) -> int: ...
    @property
    def items(self) -> int: ...
    @property
    def item_len(self) -> int: ...


class Blocks(NamedTuple):
    """Contiguous copies; int64 arrays of shape [n]: source address, destination address, bytes."""

    src: Column
    dst: Column
    length: Column


Indices = Mapping[str, ArrayLike]


def bind(
    plan: Plan,
    src_regions: Sequence[HasRegion],
    dst_regions: Sequence[HasRegion],
    src_indices: Indices,
    dst_indices: Indices,
) -> Blocks:
    """The blocks of a plan between one source and one destination rank (`Plan.between`).

    Regions are one an entry of the rank's stage, in manifest order. Indices are the item ids of each kind, equally many
    on both sides: the i-th source item goes to the i-th destination item. A kind without indices moves nothing. Items
    that are copied whole and follow each other on both sides become one block.

    Raises BindError (PD1031): the plan has several ranks a side, a region that is missing or of another item length,
    index lists of unequal length, an index outside its region.
    """
    rows = plan.columns
    for side in ((rows.src_pp, rows.src_tp), (rows.dst_pp, rows.dst_tp)):
        if len(rows) and any(np.any(column != column[0]) for column in side):
            raise BindError("the plan has several ranks a side; narrow it with between()")
    used = np.unique(rows.pair)
    src = _Side("source", plan, used, src_regions, src_indices)
    dst = _Side("destination", plan, used, dst_regions, dst_indices)
    kinds: dict[str, list[int]] = {}
    for p in used.tolist():
        kinds.setdefault(plan.pairs[p].kind, []).append(p)

    jobs: list[_Job] = []
    for kind, pairs in kinds.items():
        items = _items(kind, src, dst, pairs)
        if items is None:
            continue
        of_kind = rows.where(np.isin(rows.pair, pairs))
        whole = (of_kind.length == src.item_len[of_kind.pair]) & (of_kind.length == dst.item_len[of_kind.pair])
        for count in np.unique(of_kind.count).tolist():
            for mask, run in ((~whole, items), (whole, _runs(items))):
                part = of_kind.where(mask & (of_kind.count == count))
                if len(part):
                    jobs.append(_job(part, run, count, src, dst))
    return _expand(jobs)


class _Items(NamedTuple):
    """Item ids of one kind, pairwise; `run` consecutive items start at each."""

    src: Column
    dst: Column
    run: Column


class _Job(NamedTuple):
    """Blocks of shape [rows, items, count], as the terms that add up to them."""

    src: Column
    dst: Column
    length: Column
    src_step: Column
    dst_step: Column
    repeats: int


class _Side:
    """Addresses and indices of one side, as arrays over the plan's pairs."""

    def __init__(self, name: str, plan: Plan, used: Column, regions: Sequence[HasRegion], indices: Indices) -> None:
        self.name = name
        self.indices = indices
        self.base, self.item_len, self.items = (np.zeros(len(plan.pairs), dtype=np.int64) for _ in range(3))
        for p in used.tolist():
            pair = plan.pairs[p]
            at = pair.src_index if name == "source" else pair.dst_index
            expected = pair.src_item_len if name == "source" else pair.dst_item_len
            entry = f"({pair.kind} layer {pair.layer} {pair.tensor})"
            if at >= len(regions):
                raise BindError(f"{name}: {len(regions)} regions, the plan uses number {at} {entry}")
            region = regions[at]
            if region.item_len != expected:
                found = f"items of {region.item_len} bytes, the layout says {expected}"
                raise BindError(f"{name}: region {at} {entry} has {found}")
            self.base[p], self.item_len[p], self.items[p] = region.base, region.item_len, region.items

    def ids(self, kind: str, pairs: list[int]) -> Column:
        """The item ids of a kind, checked against every region that they will address."""
        ids: NDArray[np.int64] = np.asarray(self.indices.get(kind, ()), dtype=np.int64).reshape(-1)
        smallest = int(self.items[pairs].min())
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < smallest):
            bad = int(ids[(ids < 0) | (ids >= smallest)][0])
            raise BindError(f"{self.name}: {kind} index {bad}, the region has {smallest} items")
        return ids


def _items(kind: str, src: _Side, dst: _Side, pairs: list[int]) -> _Items | None:
    here, there = src.ids(kind, pairs), dst.ids(kind, pairs)
    if len(here) != len(there):
        raise BindError(f"{kind}: {len(here)} source indices, {len(there)} destination indices")
    return _Items(here, there, np.ones_like(here)) if len(here) else None


def _runs(items: _Items) -> _Items:
    """Consecutive items on both sides, collapsed to where each run starts and how long it is."""
    apart = np.ones(len(items.src), dtype=bool)
    apart[1:] = (np.diff(items.src) != 1) | (np.diff(items.dst) != 1)
    at = np.flatnonzero(apart)
    return _Items(items.src[at], items.dst[at], np.diff(at, append=len(items.src)))


def _job(part: Columns, items: _Items, count: int, src: _Side, dst: _Side) -> _Job:
    def starts(side: _Side, offset: Column, ids: Column) -> Column:
        return (side.base[part.pair] + offset)[:, None] + side.item_len[part.pair][:, None] * ids

    steps = np.arange(count, dtype=np.int64)
    return _Job(
        starts(src, part.src_offset, items.src),
        starts(dst, part.dst_offset, items.dst),
        part.length[:, None] * items.run,
        part.src_stride[:, None] * steps,
        part.dst_stride[:, None] * steps,
        count,
    )


def _expand(jobs: Sequence[_Job]) -> Blocks:
    """One allocation a column; each job is added straight into its place."""
    total = sum(job.src.size * job.repeats for job in jobs)
    out = Blocks(*(np.empty(total, dtype=np.int64) for _ in Blocks._fields))
    at = 0
    for job in jobs:
        shape = (*job.src.shape, job.repeats)
        here = slice(at, at := at + job.src.size * job.repeats)
        np.add(job.src[:, :, None], job.src_step[:, None, :], out=out.src[here].reshape(shape))
        np.add(job.dst[:, :, None], job.dst_step[:, None, :], out=out.dst[here].reshape(shape))
        out.length[here].reshape(shape)[...] = job.length[:, :, None]
    return out
