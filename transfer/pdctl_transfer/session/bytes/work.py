"""What a pair of layouts means for single ranks: who talks to whom, and what one rank writes into another."""

from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plan import Plan, RankId, make_plan
from pdctl_transfer.session.bytes.cost import Way
from pdctl_transfer.session.bytes.packing import Strip, strips

Column = NDArray[np.int64]


class Split(NamedTuple):
    """A part, cut by the ways its kinds travel: plans of what goes straight, and strips of the rest, by kind."""

    direct: dict[str, Plan]
    packed: dict[str, tuple[Strip, ...]]
    staged: dict[str, tuple[Strip, ...]]


class Part:
    """What one prefill rank writes into one decode rank: `plan` narrowed to both, and its rows by kind."""

    def __init__(self, plan: Plan, source: RankId, destination: RankId, entries: tuple[Entry, ...]) -> None:
        self.plan, self.source, self.destination = plan, source, destination
        self.decode_tp = plan.decode_tp
        self._entries = entries
        kinds = [plan.pairs[p].kind for p in plan.columns.pair.tolist()]
        self.rows: dict[str, Column] = {
            kind: np.array([i for i, k in enumerate(kinds) if k == kind]) for kind in dict.fromkeys(kinds)
        }
        """Rows of the plan's columns for each kind, in plan order."""
        self._splits: dict[tuple[tuple[str, str], ...], Split] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of which something is written, in plan order."""
        return tuple(self.rows)

    @cached_property
    def strips(self) -> dict[str, tuple[Strip, ...]]:
        """The strips of each kind."""
        return {kind: strips(self.plan, rows) for kind, rows in self.rows.items()}

    def strips_of(self, kind: str) -> list[tuple[Strip, Entry, str]]:
        """The kind's strips, each with the decode entry it fills and a name that both sides give that entry."""
        pairs = dict.fromkeys(self.plan.columns.pair[self.rows[kind]].tolist())
        names = [self.plan.pairs[p] for p in pairs]
        keys = [f"{pair.kind}/{pair.layer}/{pair.tensor}/{pair.n}" for pair in names]
        entries = [self._entries[pair.dst_index] for pair in names]
        return list(zip(self.strips[kind], entries, keys, strict=True))

    def split(self, ways: Mapping[str, Way]) -> Split:
        """The part by ways. Of a packed kind, what needs no gathering goes straight."""
        key = tuple(sorted(ways.items()))
        if key not in self._splits:
            self._splits[key] = self._split(ways)
        return self._splits[key]

    def _split(self, ways: Mapping[str, Way]) -> Split:
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
                scattered = [strip.src_run < 0 for strip in self.strips[kind]]
                packed[kind] = tuple(s for s, gather in zip(self.strips[kind], scattered, strict=True) if gather)
                left = rows[np.isin(pair_of, [p for p, gather in zip(pairs, scattered, strict=True) if not gather])]
            if len(left):
                columns = self.plan.columns.where(left)
                straight[kind] = Plan(self.plan.pairs, columns, self.plan.prefill_tp, self.plan.decode_tp)
        return Split(straight, packed, staged)


class PairPlan:
    """The plan of a pair, and who talks to whom under it."""

    def __init__(self, prefill: Manifest, decode: Manifest) -> None:
        self.prefill, self.decode = prefill, decode
        self.plan = make_plan(prefill, decode)
        self.digest = self.plan.digest
        self.links = links(self.plan, ranks_of(prefill), ranks_of(decode))
        self._parts: dict[tuple[RankId, RankId], Part] = {}

    def decode_ranks(self, prefill: RankId) -> tuple[RankId, ...]:
        """The decode ranks that must ask this prefill rank before a room is complete."""
        return tuple(sorted(dst for src, dst in self.links if src == prefill))

    def prefill_ranks(self, decode: RankId) -> tuple[RankId, ...]:
        """The prefill ranks that this decode rank asks."""
        return tuple(sorted(src for src, dst in self.links if dst == decode))

    def part(self, src: RankId, dst: RankId) -> Part:
        """What `src` writes into `dst`; possibly nothing."""
        key = (src, dst)
        if key not in self._parts:
            stage = next(stage for stage in self.decode.stages if stage.pp_rank == dst.pp)
            entries = tuple(entry for component in stage.components for entry in component.entries)
            self._parts[key] = Part(self.plan.between(src, dst), src, dst, entries)
        return self._parts[key]


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
