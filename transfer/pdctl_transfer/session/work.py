"""What a pair of layouts means for single ranks: who talks to whom, and what one rank writes into another."""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plan import Plan, RankId, make_plan

Column = NDArray[np.int64]


class Part:
    """What one prefill rank writes into one decode rank: `plan` narrowed to both, and its rows by kind."""

    def __init__(self, plan: Plan, source: RankId, destination: RankId) -> None:
        self.plan, self.source, self.destination = plan, source, destination
        kinds = np.array([pair.kind for pair in plan.pairs], dtype=object)[plan.columns.pair]
        self.rows: dict[str, Column] = {str(kind): np.flatnonzero(kinds == kind) for kind in dict.fromkeys(kinds)}
        """Rows of the plan's columns for each kind, in plan order."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of which something is written, in plan order."""
        return tuple(self.rows)

    @cached_property
    def item_bytes(self) -> dict[str, int]:
        """Bytes that move for one index of each kind."""
        columns = self.plan.columns
        return {kind: int((columns.length[rows] * columns.count[rows]).sum()) for kind, rows in self.rows.items()}


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
            self._parts[key] = Part(self.plan.between(src, dst), src, dst)
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
