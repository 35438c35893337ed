"""What each source rank copies into each destination rank, in units of one row of an item.

Both sides cut the same unit axis into *tiles*: a run of units that one rank holds, or several ranks hold copies of. A
sweep over both tilings gives segments that lie in one tile on either side; which of a tile's copies writes is decided
later (`planner`), so a segment carries its candidates.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.algebra import copies_of_head, heads_per_rank, total_units
from pdctl_transfer.layout.manifest import Entry

Column = NDArray[np.int64]


class Tiles(NamedTuple):
    """One side's cut of a unit axis, in axis order; int64 arrays of shape [n] which together cover it once.

    start: first unit, on the whole axis. local: the same unit's place in the holder's own row. first, copies: the
    `copies` consecutive ranks from `first` on hold it.
    """

    start: Column
    local: Column
    first: Column
    copies: Column


class Segments(NamedTuple):
    """Units to copy into one destination rank; int64 arrays of shape [n], ordered by (unit, destination).

    `first` and `choices`: ranks first … first + choices − 1 hold equal copies, one of them is to write. Offsets and
    lengths are in units of a row.
    """

    dst: Column
    first: Column
    choices: Column
    src_unit: Column
    dst_unit: Column
    length: Column


def tiles(entry: Entry, tp: int) -> Tiles:
    """How `tp` ranks hold the unit axis of `entry`. PlanError (PD1004) where its split does not divide."""
    if entry.sharding == "replicated":
        return Tiles(*(np.array([value], dtype=np.int64) for value in (0, 0, 0, tp)))
    parts: list[Column] = []
    base = own = 0
    for group in entry.groups:
        copies, share = copies_of_head(group, tp), heads_per_rank(group, tp) * group.width
        k = np.arange(tp // copies, dtype=np.int64)
        parts.append(np.stack([base + k * share, np.full_like(k, own), k * copies, np.full_like(k, copies)]))
        base += group.heads * group.width
        own += share
    return Tiles(*np.concatenate(parts, axis=1))


def intersect(src: Entry, src_tp: int, dst: Entry, dst_tp: int) -> Segments:
    """Segments that fill every destination rank's row; at most as many tile overlaps as both sides have tiles.

    Where a tile has several copies on both sides, source copies are dealt to destination copies in order: equal
    numbers pair one to one, fewer sources broadcast, more sources leave each destination a block to choose from. Where
    neither number divides the other, neighbouring destinations share a source, so that the work can still be spread.
    """
    here, there = tiles(src, src_tp), tiles(dst, dst_tp)
    start = np.union1d(here.start, there.start)
    length = np.diff(start, append=total_units(dst))
    s = np.searchsorted(here.start, start, side="right") - 1
    d = np.searchsorted(there.start, start, side="right") - 1

    wanted = there.copies[d]
    row = np.repeat(np.arange(len(start)), wanted)
    copy = np.arange(len(row)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    s, d, start = s[row], d[row], start[row]
    held, wanted = here.copies[s], wanted[row]
    low, high = copy * held // wanted, -(-(copy + 1) * held // wanted)
    return Segments(
        dst=there.first[d] + copy,
        first=here.first[s] + low,
        choices=high - low,
        src_unit=here.local[s] + start - here.start[s],
        dst_unit=there.local[d] + start - there.start[d],
        length=length[row],
    )
