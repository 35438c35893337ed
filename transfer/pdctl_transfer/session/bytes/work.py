"""What a pair of layouts means for single ranks: who talks to whom, and what one rank writes into another."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plan import Binding, Plan, RankId, make_plan
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.packing import TIGHT, Steps, Strip, strips
from pdctl_transfer.session.options import Way

Column = NDArray[np.int64]
Ways = Mapping[str, Way]
Regions = tuple[Region, ...]
KEPT: Final = 64
"""Pairs of memories to which a part stays bound: engines that restart bring new ones."""


class Split(NamedTuple):
    """A part, cut by the ways its kinds travel: plans of what goes straight, and strips of the rest, by kind."""

    direct: dict[str, Plan]
    packed: dict[str, tuple[Strip, ...]]
    staged: dict[str, tuple[Strip, ...]]


class Part:
    """What one prefill rank writes into one decode rank: `plan` narrowed to both, and its rows by kind."""

    def __init__(
        self,
        plan: Plan,
        source: RankId,
        destination: RankId,
        entries: tuple[Entry, ...],
        steps: Steps = TIGHT,
    ) -> None:
        self.plan, self.source, self.destination = plan, source, destination
        self.decode_tp = plan.decode_tp
        self._entries, self._steps = entries, steps
        kinds = [plan.pairs[p].kind for p in plan.columns.pair.tolist()]
        self.rows: dict[str, Column] = {
            kind: np.array([i for i, k in enumerate(kinds) if k == kind]) for kind in dict.fromkeys(kinds)
        }
        """Rows of the plan's columns for each kind, in plan order."""
        self._splits: dict[tuple[tuple[str, str], ...], Split] = {}
        self._bound: OrderedDict[object, tuple[Regions, Regions, dict[str, Binding]]] = OrderedDict()
        self._binding = threading.Lock()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of which something is written, in plan order."""
        return tuple(self.rows)

    @cached_property
    def strips(self) -> dict[str, tuple[Strip, ...]]:
        """The strips of each kind."""
        return {kind: strips(self.plan, rows, self._steps) for kind, rows in self.rows.items()}

    @cached_property
    def item_copies(self) -> dict[str, int]:
        """In how many copies an item of each kind is cut, in all entries."""
        return {kind: sum(len(strip.copies) for strip in made) for kind, made in self.strips.items()}

    def strips_of(self, kind: str) -> list[tuple[Strip, Entry, str]]:
        """The kind's strips, each with the decode entry it fills and a name that both sides give that entry."""
        pairs = dict.fromkeys(self.plan.columns.pair[self.rows[kind]].tolist())
        names = [self.plan.pairs[p] for p in pairs]
        keys = [f"{pair.kind}/{pair.layer}/{pair.tensor}/{pair.n}" for pair in names]
        entries = [self._entries[pair.dst_index] for pair in names]
        return list(zip(self.strips[kind], entries, keys, strict=True))

    def bindings(self, ways: Ways, here: Regions, there: Regions) -> dict[str, Binding]:
        """What goes straight under these ways, by kind, bound to both ranks' memory. Made once, for any thread; known
        again by the two tuples themselves. Raises BindError as `Binding`."""
        key = (tuple(sorted(ways.items())), id(here), id(there))
        with self._binding:
            if key not in self._bound:
                direct = self.split(ways).direct
                self._bound[key] = here, there, {kind: Binding(plan, here, there) for kind, plan in direct.items()}
                if len(self._bound) > KEPT:
                    self._bound.popitem(last=False)
            self._bound.move_to_end(key)
            return self._bound[key][2]

    def split(self, ways: Ways) -> Split:
        """The part by ways. Of a packed kind, what needs no gathering goes straight."""
        key = tuple(sorted(ways.items()))
        if key not in self._splits:
            self._splits[key] = self._split(ways)
        return self._splits[key]

    def _split(self, ways: Ways) -> Split:
        straight: dict[str, Plan] = {}
        packed: dict[str, tuple[Strip, ...]] = {}
        staged: dict[str, tuple[Strip, ...]] = {}
        for kind, rows in self.rows.items():
            way = ways.get(kind, "direct")
            if way == "staged":
                staged[kind] = self.strips[kind]
                continue
            left = rows
            if way == "packed":
                pair_of = self.plan.columns.pair[rows]
                pairs = list(dict.fromkeys(pair_of.tolist()))
                packed[kind] = tuple(strip for strip in self.strips[kind] if strip.pays)
                stay = [pair for pair, strip in zip(pairs, self.strips[kind], strict=True) if not strip.pays]
                left = rows[np.isin(pair_of, stay)]
            if len(left):
                columns = self.plan.columns.where(left)
                straight[kind] = Plan(self.plan.pairs, columns, self.plan.prefill_tp, self.plan.decode_tp)
        return Split(straight, packed, staged)


def straight_blocks(
    part: Part,
    ways: Ways,
    here: Regions,
    there: Regions,
    ids_here: Mapping[str, Column],
    ids_there: Mapping[str, Column],
) -> dict[str, Blocks]:
    """Of each kind, the blocks of what goes straight under these ways, for these items. For any thread.

    here, there: each rank's one tuple of regions, by which the part knows that it is bound to them. Raises BindError
    (PD1031): ids that differ in number, or lie outside of the regions.
    """
    return {kind: bound.blocks(ids_here, ids_there) for kind, bound in part.bindings(ways, here, there).items()}


def joined(some: Iterable[Blocks]) -> Blocks:
    """All of them in one, in order."""
    all_of_them = list(some)
    if len(all_of_them) == 1:
        return all_of_them[0]
    none = Blocks(*np.zeros((3, 0), dtype=np.int64))
    return Blocks(*(np.concatenate(columns) for columns in zip(none, *all_of_them, strict=True)))


class PairPlan:
    """The plan of a pair, and who talks to whom under it."""

    def __init__(self, prefill: Manifest, decode: Manifest) -> None:
        self.prefill, self.decode = prefill, decode
        self.plan = make_plan(prefill, decode)
        self.digest = self.plan.digest
        self.links = links(self.plan, ranks_of(prefill), ranks_of(decode))
        self._parts: dict[tuple[RankId, RankId, Steps], Part] = {}

    def decode_ranks(self, prefill: RankId) -> tuple[RankId, ...]:
        """The decode ranks that must ask this prefill rank before a room is complete."""
        return tuple(sorted(dst for src, dst in self.links if src == prefill))

    def prefill_ranks(self, decode: RankId) -> tuple[RankId, ...]:
        """The prefill ranks that this decode rank asks."""
        return tuple(sorted(src for src, dst in self.links if dst == decode))

    def part(self, src: RankId, dst: RankId, here: Regions = (), there: Regions = ()) -> Part:
        """What `src` writes into `dst`; possibly nothing. here, there: their regions, where items may lie apart."""
        steps = Steps(steps_of(here), steps_of(there))
        key = (src, dst, steps)
        if key not in self._parts:
            stage = next(stage for stage in self.decode.stages if stage.pp_rank == dst.pp)
            entries = tuple(entry for component in stage.components for entry in component.entries)
            self._parts[key] = Part(self.plan.between(src, dst), src, dst, entries, steps)
        return self._parts[key]


def steps_of(regions: Regions) -> tuple[int, ...]:
    """Bytes from item to item in each; empty where no items lie apart."""
    return tuple(region.step for region in regions) if any(region.stride for region in regions) else ()


def ranks_of(manifest: Manifest) -> tuple[RankId, ...]:
    """All ranks of one DP group."""
    tp = manifest.parallel.attn_tp
    return tuple(RankId(stage.pp_rank, t) for stage in manifest.stages for t in range(tp))


def links(plan: Plan, prefill: tuple[RankId, ...], decode: tuple[RankId, ...]) -> frozenset[tuple[RankId, RankId]]:
    """(prefill rank, decode rank) pairs that must talk.

    Each decode rank asks the ranks that write into it. A rank that would talk to nobody (all its state is written by a
    peer that holds the same) is tied to the first rank of the other side, so that its engine, too, learns the outcome.
    """
    columns = plan.columns
    rows = np.stack([columns.src_pp, columns.src_tp, columns.dst_pp, columns.dst_tp], axis=1)
    found = {(RankId(a, b), RankId(c, d)) for a, b, c, d in np.unique(rows, axis=0).tolist()}
    talkers = {src for src, _ in found}
    hearers = {dst for _, dst in found}
    found |= {(src, decode[0]) for src in prefill if src not in talkers}
    found |= {(prefill[0], dst) for dst in decode if dst not in hearers}
    return frozenset(found)


@lru_cache(maxsize=16)
def pair_plan(prefill: bytes, decode: bytes) -> PairPlan:
    """The plan of two encoded manifests, computed once a process. Raises PlanError, ManifestError."""
    return PairPlan(decode_manifest(prefill, "prefill"), decode_manifest(decode, "decode"))
