"""Memory as labels: which logical piece of a request's state stands where, before and after blocks are copied.

Needs numpy alone: the engine's Python runs it too. Cuts fall between heads, so an item is a row of *grains*, a grain
for each stretch of bytes that no right cut can split; a label names the grain's place in the whole, uncut state.
"""

import hashlib
from functools import lru_cache
from math import gcd

import numpy as np

PAINT = -1
ITEMS = 8
SPACE = 1 << 34
"""Addresses from region to region: what lies between belongs to nobody."""


class Entry:
    """One entry as a rank of `tp` holds it. `about`: key, kind, sharding, outer, groups, inner, item_len."""

    def __init__(self, about, tp, rank):
        self.key, self.kind, self.item_len = about["key"], about["kind"], about["item_len"]
        groups = tuple((heads, width) for heads, width in about["groups"])
        shape = about["sharding"], about["outer"], groups, about["inner"]
        self.grain, self.grains = cut(*shape, tp, rank) if self.item_len else (1, np.zeros(0, dtype=np.int64))
        assert len(self.grains) * self.grain == self.item_len, about

    def labels(self, positions):
        """Of an item at each position of a request: [positions][grains]."""
        return (self.key * ITEMS + np.asarray(positions)[:, None]) * (1 << 34) + self.grains[None, :]


@lru_cache(maxsize=1024)
def cut(sharding, outer, groups, inner, tp, rank):
    """(bytes of a grain, numbers of the grains that a rank's item consists of)."""
    total = sum(heads * width for heads, width in groups)
    if sharding == "replicated":
        units, step = np.arange(total), total
    else:
        step = gcd(*(width for _, width in groups))
        units = held(groups, tp, rank)
    rows = np.arange(outer)[:, None] * total + units.reshape(-1, step)[:, 0][None, :]
    return step * inner, rows.reshape(-1)


def held(groups, tp, rank):
    """Numbers of the units that a rank holds, in its order: each group is cut by whole heads, or ranks share a head."""
    found, base = [], 0
    for heads, width in groups:
        share = max(1, heads // tp)
        first = rank * share if heads >= tp else rank * heads // tp
        found.append(np.arange(base + first * width, base + (first + share) * width))
        base += heads * width
    return np.concatenate(found)


class Memory:
    """A rank's regions, each of ITEMS items, all painted, or holding a request at the ids of each kind."""

    def __init__(self, entries, base, ids=None):
        self.entries, self.base = entries, base
        sizes = [ITEMS * len(entry.grains) for entry in entries]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.labels = np.full(self.starts[-1], PAINT, dtype=np.int64)
        self.grain = np.array([entry.grain for entry in entries], dtype=np.int64)
        self.nbytes = np.array([ITEMS * entry.item_len for entry in entries], dtype=np.int64)
        for entry, start in zip(entries, self.starts.tolist(), strict=False):
            mine = None if ids is None else ids.get(entry.kind)
            if mine is not None and len(entry.grains):
                items = self.labels[start : start + ITEMS * len(entry.grains)].reshape(ITEMS, -1)
                items[mine] = entry.labels(range(len(mine)))

    def address(self, region):
        """Where a region begins."""
        return self.base + region * SPACE

    def grains_at(self, addresses, lengths):
        """(first grain, how many) of stretches that are whole grains of one region. ValueError where they are not."""
        region, offset = np.divmod(np.asarray(addresses, dtype=np.int64) - self.base, SPACE)
        if ((region < 0) | (region >= len(self.entries))).any():
            raise ValueError("an address of no region")
        if (offset + lengths > self.nbytes[region]).any():
            raise ValueError("a block runs past its region")
        grain = self.grain[region]
        if (offset % grain).any() or (lengths % grain).any():
            raise ValueError("a block cuts through a head")
        return self.starts[region] + offset // grain, lengths // grain


def copy(source, target, src, dst, length):
    """Carry blocks out, as a NIC would. ValueError as `grains_at`, and where the sides disagree on a grain."""
    length = np.asarray(length, dtype=np.int64)
    src_at, count = source.grains_at(src, length)
    dst_at, there = target.grains_at(dst, length)
    if not np.array_equal(count, there):
        raise ValueError("grains of one size land on grains of another")
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    target.labels[np.repeat(dst_at, count) + within] = source.labels[np.repeat(src_at, count) + within]


def digest(memories):
    """Of all that the ranks of a side hold, painted items included."""
    found = hashlib.sha256()
    for memory in memories:
        found.update(memory.labels.astype("<i8").tobytes())
    return found.hexdigest()[:16]


def ranks(side):
    """(pipeline stage, TP rank) of a side, stage by stage."""
    return [(pp, tp) for pp in range(len(side["stages"])) for tp in range(side["tp"])]


def memories(side, ids, base, filled):
    """The memory of each rank of a side, holding the request at the ids or all painted."""
    made = {}
    for number, (pp, tp) in enumerate(ranks(side)):
        entries = [Entry(about, side["tp"], tp) for about in side["stages"][pp]["entries"]]
        made[pp, tp] = Memory(entries, base + number * (1 << 44), ids if filled else None)
    return made
