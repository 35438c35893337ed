"""Checksums over the logical content of state: independent of how it was cut over ranks, and of the way it travelled.

Every word of a request's state has a place that no cut changes: entry, position in the id list, row, unit on the whole
axis, byte. The sum adds word × weight(place) modulo 2^64, so parts add up: what several prefill ranks say they sent of
a kind equals what the decode rank holds, and all ranks' shares equal the whole at any attention TP.
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.algebra import copies_of_head, local_heads, local_units, total_units
from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.session.bytes.copying import WORDS, Memory, Words, at_address
from pdctl_transfer.session.bytes.packing import Copy, Strip
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Rank, Verify

U64 = NDArray[np.uint64]
Column = NDArray[np.int64]
STEP_BYTES: Final = 1 << 20
"""Items are summed in steps of about this size: bounded memory, and in cache."""


def mix(numbers: U64) -> U64:
    """SplitMix64's finaliser: turns counters into weights. (Steele, Lea, Flood 2014)"""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31)) | np.uint64(1)


def word_of(entry: Entry) -> int:
    """Bytes of a word: the widest that no cut can split."""
    return int(np.gcd(8, entry.inner_bytes))


def unit_map(entry: Entry, tp: int, rank: int) -> Column:
    """Units of the whole axis that a rank holds, in its own order."""
    if entry.sharding == "replicated":
        return np.arange(total_units(entry))
    parts, base = [], 0
    for group in entry.groups:
        heads = local_heads(group, tp, rank)
        parts.append(np.arange(base + heads.start * group.width, base + heads.stop * group.width))
        base += group.heads * group.width
    return np.concatenate(parts)


def weights(key: str, entry: Entry, tp: int, rank: int, offsets: Column) -> U64:
    """Weights of the words at these byte offsets of the rank's item."""
    inner, row = entry.inner_bytes, local_units(entry, tp) * entry.inner_bytes
    unit = unit_map(entry, tp, rank)[offsets % row // inner]
    place = (offsets // row * total_units(entry) + unit) * inner + offsets % inner
    return mix(place.astype(np.uint64) + np.uint64(zlib.crc32(key.encode()) << 31))


@lru_cache(maxsize=16)
def positions(count: int) -> U64:
    """Weights of the positions in an id list."""
    return mix(np.arange(count, dtype=np.uint64))


def sums(part: Part, memory: Memory, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
    """Of each kind, the sum over what the part's source writes into its destination, as `side` holds it."""
    if how == "none":
        return {}
    found = {}
    for kind in part.kinds:
        ids = indices.get(kind)
        if ids is not None and len(ids):
            looks = memory.about(part, (kind, how, side), partial(_looks, part, memory))
            found[kind] = sum(look.sum(ids) for look in looks) % (1 << 64)
    return found


def logical_sums(
    manifest: Manifest, rank: Rank, memory: Memory, indices: Mapping[str, Iterable[int]]
) -> dict[str, int]:
    """Of each kind, the sum over what this rank is the first to hold: added over all ranks (modulo 2^64) it is the same
    at any attention TP. For comparing two engines' state of one request."""
    tp = manifest.parallel.attn_tp
    found: dict[str, int] = {}
    seen: Counter[str] = Counter()
    at = -1
    for stage in (stage for stage in manifest.stages if stage.pp_rank == rank.pp):
        for component in stage.components:
            for entry in component.entries:
                at += 1
                name = f"{component.kind}/{entry.layer}/{entry.tensor}"
                key = f"{name}/{seen[name]}"
                seen[name] += 1
                ids = np.asarray(list(indices.get(component.kind, ())), dtype=np.int64)
                mine = _first_held(entry, tp, rank.tp)
                if not len(ids) or not len(mine):
                    continue
                weight = weights(key, entry, tp, rank.tp, mine)
                words = memory.items(at)[ids].view(f"u{word_of(entry)}")
                each = (words[:, mine // word_of(entry)].astype(np.uint64) * weight).sum(axis=1, dtype=np.uint64)
                total = int((each * positions(len(ids))).sum(dtype=np.uint64))
                found[component.kind] = (found.get(component.kind, 0) + total) % (1 << 64)
    return found


def _first_held(entry: Entry, tp: int, rank: int) -> Column:
    """Byte offsets of the words of which no lower rank holds a copy."""
    if entry.inner_bytes == 0 or (entry.sharding == "replicated" and rank > 0):
        return np.zeros(0, dtype=np.int64)
    units: list[int] = []
    local = 0
    for group in entry.groups:
        held = (
            group.heads * group.width
            if entry.sharding == "replicated"
            else len(local_heads(group, tp, rank)) * group.width
        )
        if entry.sharding == "replicated" or rank % copies_of_head(group, tp) == 0:
            units += range(local, local + held)
        local += held
    word = word_of(entry)
    row = np.add.outer(np.array(units, dtype=np.int64) * entry.inner_bytes, np.arange(0, entry.inner_bytes, word))
    return np.add.outer(np.arange(entry.outer) * local * entry.inner_bytes, row.reshape(-1)).reshape(-1)


class Sample(NamedTuple):
    """The words of a copy that count, the same in each item of a region, and their weights in one row.

    region: its index. step: bytes from item to item there. offset, shape, strides: where the words stand in an item, in
    bytes.
    """

    region: int
    step: int
    offset: int
    word: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    weight: U64


def samples(part: Part, kind: str, how: Verify, side: Side) -> list[Sample]:
    """The words of a kind that `sums` adds up on this side, one a copy; of no memory yet."""
    return [
        _sample(part, (strip, copy), (key, entry), how, side)
        for strip, entry, key in part.strips_of(kind)
        for copy in strip.copies
    ]


def _sample(part: Part, which: tuple[Strip, Copy], about: tuple[str, Entry], how: Verify, side: Side) -> Sample:
    (strip, copy), (key, entry) = which, about
    word = word_of(entry)
    if side == "prefill":
        index, step, offset, stride = strip.src_index, strip.src_step, copy.src_offset, copy.src_stride
    else:
        index, step, offset, stride = strip.dst_index, strip.dst_step, copy.dst_offset, copy.dst_stride
    shape: tuple[int, ...] = (copy.repeats, copy.length // word)
    strides: tuple[int, ...] = (stride if copy.repeats > 1 else copy.length, word)
    starts = copy.dst_offset + np.arange(copy.repeats) * copy.dst_stride
    places = np.add.outer(starts, np.arange(0, copy.length, word)).reshape(-1)
    if how == "sample" and len(places) > 1:  # each word is a cache miss: the first and the last
        shape, strides = (2,), (sum((count - 1) * step for count, step in zip(shape, strides, strict=True)),)
        places = places[[0, -1]]
    weight = weights(key, entry, part.decode_tp, part.destination.tp, places)
    return Sample(index, step, offset, word, shape, strides, weight)


class View(NamedTuple):
    """The words of one sample in all items of its region, and their weights."""

    words: Words
    weight: U64

    def sum(self, ids: Column) -> int:
        """Over the items with these ids."""
        position, total = positions(len(ids)), 0
        cuts = steps(len(ids), self.weight.nbytes)
        for at in cuts:
            some = self.words[ids[at : at + cuts.step]].reshape(-1, len(self.weight)).astype(np.uint64, copy=False)
            total += int(some @ self.weight @ position[at : at + cuts.step])
        return total


class Scattered(NamedTuple):
    """The few words of many samples, looked up all at once: a request of one page has a hundred of them, and a look at
    each region by itself costs more than what is looked at.

    words: all memory from the first to the last of them, of which nothing else is touched. at, step: where each stands
    in item 0, and from item to item, in words, of shape [words, 1]. weight: of shape [words].
    """

    words: Words
    at: Column
    step: Column
    weight: U64

    def sum(self, ids: Column) -> int:
        """Over the items with these ids."""
        position, total = positions(len(ids)), 0
        cuts = steps(len(ids), self.weight.nbytes)
        for at in cuts:
            some = self.words[self.at + self.step * ids[at : at + cuts.step]].astype(np.uint64, copy=False)
            total += int(self.weight @ some @ position[at : at + cuts.step])
        return total


def _looks(part: Part, memory: Memory, what: tuple[str, Verify, Side]) -> list[View | Scattered]:
    """What `sums` adds up, of this memory."""
    alike: dict[int, list[Sample]] = {}
    for sample in samples(part, *what):
        alike.setdefault(sample.word, []).append(sample)
    looks: list[View | Scattered] = []
    for made in alike.values():
        scattered = _scattered(memory, made) if what[1] == "sample" else None
        looks += [scattered] if scattered else [View(_words(memory, one), one.weight) for one in made]
    return looks


def _scattered(memory: Memory, made: list[Sample]) -> Scattered | None:
    """Samples of words of one length in one look; None where these stand at no distance of whole words."""
    word = made[0].word
    first = [memory.regions[sample.region].base + sample.offset for sample in made]
    at = np.concatenate([base + _places(sample) for base, sample in zip(first, made, strict=True)])
    step = np.concatenate([np.full(len(sample.weight), sample.step) for sample in made])
    low = int(at.min())
    if np.any((at - low) % word) or np.any(step % word):
        return None
    high = max(memory.regions[sample.region].base + memory.bytes(sample.region).nbytes for sample in made)
    words = at_address(low, (high - low) // word * word).view(WORDS[word])
    weight = np.concatenate([sample.weight for sample in made])
    return Scattered(words, (at - low)[:, None] // word, step[:, None] // word, weight)


def _places(sample: Sample) -> Column:
    """Where a sample's words stand behind its first, in bytes."""
    places = np.zeros(1, dtype=np.int64)
    for count, stride in zip(sample.shape, sample.strides, strict=True):
        places = np.add.outer(places, np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return places


def _words(memory: Memory, sample: Sample) -> Words:
    items = memory.regions[sample.region].items
    shape, strides = (items, *sample.shape), (sample.step, *sample.strides)
    words: Words = np.ndarray(shape, WORDS[sample.word], memory.bytes(sample.region).data, sample.offset, strides)
    return words


def steps(count: int, item_bytes: int) -> range:
    """Where to cut `count` items so that what is summed at once stays in cache."""
    return range(0, count, max(1, STEP_BYTES // item_bytes))
