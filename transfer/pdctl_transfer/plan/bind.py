"""A plan between two ranks, bound to addresses and index lists: the blocks to write.

Addresses are fixed when two ranks meet, indices come with each request: so `Binding` does the first once, and its
`blocks` the second with no loop over blocks or pages. Rows that share an index list and a repeat count are one
broadcast addition.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.errors import BindError
from pdctl_transfer.plan.columns import Column, Columns, Plan, PlannedPair
from pdctl_transfer.region import Region

Indices = Mapping[str, ArrayLike]


def bind(
    plan: Plan,
    src_regions: Sequence[Region],
    dst_regions: Sequence[Region],
    src_indices: Indices,
    dst_indices: Indices,
) -> Blocks:
    """The blocks of one request between two ranks, without keeping the binding. Raises as `Binding` and `blocks`."""
    return Binding(plan, src_regions, dst_regions).blocks(src_indices, dst_indices)


class Binding:
    """A plan between one source and one destination rank (`Plan.between`), bound to their regions. For any thread.

    Regions are one an entry of the rank's stage, in manifest order. Raises BindError (PD1031): a plan of several ranks
    a side, a region that is missing or of another item length than the layout's.
    """

    def __init__(self, plan: Plan, src_regions: Sequence[Region], dst_regions: Sequence[Region]) -> None:
        rows = plan.columns
        for column in (rows.src_pp, rows.src_tp, rows.dst_pp, rows.dst_tp):
            if np.any(column != column[:1]):
                raise BindError("the plan has several ranks a side; narrow it with between()")
        pairs = np.unique(rows.pair).tolist()
        at = np.searchsorted(pairs, rows.pair)
        used = [plan.pairs[p] for p in pairs]
        src = [_region("source", pair, pair.src_index, pair.src_item_len, src_regions) for pair in used]
        dst = [_region("destination", pair, pair.dst_index, pair.dst_item_len, dst_regions) for pair in used]
        kinds = np.array([pair.kind for pair in used], dtype=object)
        self._kinds = {
            kind: _Kind(
                kind,
                min(region.items for region, pair in zip(src, used, strict=True) if pair.kind == kind),
                min(region.items for region, pair in zip(dst, used, strict=True) if pair.kind == kind),
                _groups(rows, kinds[at] == kind, _Side.of(src, at), _Side.of(dst, at)),
            )
            for kind in dict.fromkeys(kinds.tolist())
        }

    def blocks(self, src_indices: Indices, dst_indices: Indices) -> Blocks:
        """The blocks for these items: by kind the item ids of each side, the i-th source goes to the i-th destination.

        A kind without indices moves nothing. Items that are copied whole and follow each other on both sides become
        one block. Raises BindError (PD1031): lists of unequal length, an index outside its region.
        """
        jobs: list[tuple[_Group, _Items]] = []
        for kind in self._kinds.values():
            items = kind.items(src_indices.get(kind.name, ()), dst_indices.get(kind.name, ()))
            if len(items.src):
                jobs += [(group, _runs(items) if group.whole else items) for group in kind.groups]
        total = sum(group.blocks(items) for group, items in jobs)
        out = Blocks(*np.empty((3, total), dtype=np.int64))
        start = 0
        for group, items in jobs:
            stop = start + group.blocks(items)
            group.expand(items, Blocks(*(column[start:stop] for column in out)))
            start = stop
        return out


class _Items(NamedTuple):
    """Item ids of one kind, pairwise; `run` consecutive items start at each."""

    src: Column
    dst: Column
    run: Column


class _Side(NamedTuple):
    """Base address of the region of each row, and bytes from item to item there."""

    base: Column
    step: Column

    @staticmethod
    def of(regions: Sequence[Region], at: Column) -> "_Side":
        pairs = np.array([(region.base, region.step) for region in regions], dtype=np.int64).reshape(-1, 2)
        return _Side(*pairs[at].T)


class _Group(NamedTuple):
    """Rows of one kind with one repeat count; arrays of shape [rows, 1], steps [rows, count].

    `src`, `dst`: address of the first copy in item 0. `whole`: each row copies its item as a whole, and
    items follow each other without a gap.
    """

    src: Column
    dst: Column
    src_item: Column
    dst_item: Column
    length: Column
    src_step: Column
    dst_step: Column
    whole: bool

    def blocks(self, items: _Items) -> int:
        """How many blocks these items take."""
        return self.src_step.size * len(items.src)

    def expand(self, items: _Items, out: Blocks) -> None:
        """Fill `out`, ordered by row, item, repetition."""
        rows, count = self.src_step.shape
        shape = (rows, len(items.src), count)
        np.add((self.src + self.src_item * items.src)[:, :, None], self.src_step[:, None], out=out.src.reshape(shape))
        np.add((self.dst + self.dst_item * items.dst)[:, :, None], self.dst_step[:, None], out=out.dst.reshape(shape))
        out.length.reshape(rows, -1)[...] = self.length * items.run if self.whole else self.length


class _Kind(NamedTuple):
    """What shares one index list a side, and how many items its shortest regions have."""

    name: str
    src_items: int
    dst_items: int
    groups: tuple[_Group, ...]

    def items(self, src: ArrayLike, dst: ArrayLike) -> _Items:
        """The item ids as arrays, checked."""
        here = self._checked("source", src, self.src_items)
        there = self._checked("destination", dst, self.dst_items)
        if len(here) != len(there):
            raise BindError(f"{self.name}: {len(here)} source indices, {len(there)} destination indices")
        return _Items(here, there, np.ones_like(here))

    def _checked(self, side: str, indices: ArrayLike, items: int) -> Column:
        ids: Column = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(ids) and ids.view(np.uint64).max() >= items:  # a negative one is a large one
            bad = int(ids[(ids < 0) | (ids >= items)][0])
            raise BindError(f"{side}: {self.name} index {bad}, the region has {items} items")
        return ids


def _region(side: str, pair: PlannedPair, at: int, item_len: int, regions: Sequence[Region]) -> Region:
    entry = f"({pair.kind} layer {pair.layer} {pair.tensor})"
    if at >= len(regions):
        raise BindError(f"{side}: {len(regions)} regions, the plan uses number {at} {entry}")
    region = regions[at]
    if region.item_len != item_len:
        found = f"items of {region.item_len} bytes, the layout says {item_len}"
        raise BindError(f"{side}: region {at} {entry} has {found}")
    return region


def _groups(rows: Columns, mine: NDArray[np.bool_], src: _Side, dst: _Side) -> tuple[_Group, ...]:
    whole = (rows.length == src.step) & (rows.length == dst.step)
    found = []
    for is_whole in (False, True):
        here = mine & (whole == is_whole)
        for count in np.unique(rows.count[here]).tolist():
            at = np.flatnonzero(here & (rows.count == count))
            steps = np.arange(count, dtype=np.int64)
            found.append(
                _Group(
                    (src.base + rows.src_offset)[at, None],
                    (dst.base + rows.dst_offset)[at, None],
                    src.step[at, None],
                    dst.step[at, None],
                    rows.length[at, None],
                    rows.src_stride[at, None] * steps,
                    rows.dst_stride[at, None] * steps,
                    is_whole,
                )
            )
    return tuple(found)


def _runs(items: _Items) -> _Items:
    """Consecutive items on both sides, collapsed to where each run starts and how long it is."""
    if len(items.src) == 1:
        return items
    apart = np.ones(len(items.src), dtype=bool)
    apart[1:] = (np.diff(items.src) != 1) | (np.diff(items.dst) != 1)
    at = np.flatnonzero(apart)
    return _Items(items.src[at], items.dst[at], np.diff(at, append=len(items.src)))
