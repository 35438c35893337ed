"""From two layouts to the copies that fill the decode side: pair, intersect, elect a writer, merge.

Pure and address-free: both sides compute the same plan from the same two manifests, and its digest proves it.
"""

from collections.abc import Iterable

import numpy as np

from pdctl_transfer.errors import PlanError
from pdctl_transfer.layout.algebra import INT64_MAX, faults, is_placeholder, item_len, local_units, split_faults
from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.layout.pairing import Pair, pair_entries
from pdctl_transfer.plan.columns import Column, Columns, Plan, PlannedPair
from pdctl_transfer.plan.intersect import Segments, intersect
from pdctl_transfer.plan.merge import Copies, Row, merge

#: Limits that fail closed: a plan beyond them is a mistake in a manifest, not a fleet.
MAX_TP = 4096
MAX_ROWS = 2**24

#: The reasons for which entries cannot be planned, and their codes.
UNSOUND = {"position": "PD1012", "mixed_ids": "PD1010", "uneven_ids": "PD1010"}


def make_plan(prefill: Manifest, decode: Manifest) -> Plan:
    """The plan that moves one item of every paired entry from all prefill ranks to all decode ranks.

    Entries without a partner are left out (`check` judges them). Raises PlanError, with the code of what is wrong: a
    manifest that contradicts itself (PD1021), a split that does not divide (PD1004), unequal page sizes (PD1001),
    paired entries of different shape (PD1008), entries that cannot be paired soundly (PD1010, PD1012), limits (PD1030).
    """
    _check(prefill, decode)
    pairing = pair_entries(prefill, decode)
    for problem in pairing.of("position", "mixed_ids", "uneven_ids"):
        raise PlanError(f"{problem.kind} on {problem.side}: {problem.text}", code=UNSOUND[problem.reason])
    planner = _Planner(prefill, decode)
    pairs = [pair for pair in pairing.pairs if not _check_shape(pair)]
    return planner.plan(pairs)


class _Planner:
    """Holds what pairs share: geometries already intersected, and how much each rank was elected to write."""

    def __init__(self, prefill: Manifest, decode: Manifest) -> None:
        self.src_tp = prefill.parallel.attn_tp
        self.dst_tp = decode.parallel.attn_tp
        self._segments: dict[object, Segments] = {}
        self._copies: dict[object, Copies] = {}
        self._elected: dict[int, list[int]] = {}

    def plan(self, pairs: Iterable[Pair]) -> Plan:
        planned: list[PlannedPair] = []
        parts: list[Columns] = []
        rows = 0
        for pair in pairs:
            copies = self._copies_of(pair)
            rows += len(copies.src)
            if rows > MAX_ROWS:
                raise PlanError(f"more than {MAX_ROWS} rows", code="PD1030")
            parts.append(_columns(len(planned), pair, copies))
            planned.append(self._planned(pair))
        empty = Columns(*(np.zeros(0, dtype=np.int64) for _ in Columns.__slots__))
        columns = Columns(*(np.concatenate(same) for same in zip(*parts, strict=True))) if parts else empty
        return Plan(tuple(planned), columns, self.src_tp, self.dst_tp)

    def _planned(self, pair: Pair) -> PlannedPair:
        src, dst = pair.src, pair.dst
        return PlannedPair(
            dst.kind,
            pair.layer,
            src.entry.tensor,
            pair.n,
            src.place.pp,
            dst.place.pp,
            src.place.index,
            dst.place.index,
            item_len(src.entry, self.src_tp),
            item_len(dst.entry, self.dst_tp),
        )

    def _copies_of(self, pair: Pair) -> Copies:
        src, dst = pair.src.entry, pair.dst.entry
        geometry = (src.sharding, dst.sharding, src.groups, src.outer, src.inner_bytes)
        if geometry not in self._segments:
            self._segments[geometry] = intersect(src, self.src_tp, dst, self.dst_tp)
        segments = self._segments[geometry]
        writers = self._elect(segments, pair.src.place.pp, src.outer * src.inner_bytes)
        variant = (geometry, writers.tobytes())
        if variant not in self._copies:
            self._copies[variant] = self._merged(segments, writers, src, dst)
        return self._copies[variant]

    def _elect(self, segments: Segments, pp: int, unit_bytes: int) -> Column:
        """The rank that writes each segment: of equal copies, the one that was elected for the fewest bytes so far."""
        writers = segments.first.copy()
        open_rows = np.flatnonzero(segments.choices > 1)
        if not len(open_rows):
            return writers
        load = self._elected.setdefault(pp, [0] * self.src_tp)
        ballots = np.stack([segments.dst, segments.first, segments.choices])[:, open_rows]
        unique, ballot = np.unique(ballots, axis=1, return_inverse=True)
        units = np.bincount(ballot.ravel(), weights=segments.length[open_rows])
        winners = np.empty(unique.shape[1], dtype=np.int64)
        for i, (_, first, choices) in enumerate(unique.T.tolist()):
            winners[i] = min(range(first, first + choices), key=load.__getitem__)
            load[winners[i]] += int(units[i]) * unit_bytes
        writers[open_rows] = winners[ballot.ravel()]
        return writers

    def _merged(self, segments: Segments, writers: Column, src: Entry, dst: Entry) -> Copies:
        inner = src.inner_bytes
        row = Row(local_units(src, self.src_tp) * inner, local_units(dst, self.dst_tp) * inner, src.outer)
        in_bytes = (segments.src_unit * inner, segments.dst_unit * inner, segments.length * inner)
        return merge(writers, segments.dst, *in_bytes, row)


def _columns(p: int, pair: Pair, copies: Copies) -> Columns:
    same = np.ones_like(copies.src)
    src, dst, *rest = copies
    return Columns(same * p, same * pair.src.place.pp, src, same * pair.dst.place.pp, dst, *rest)


def _check(prefill: Manifest, decode: Manifest) -> None:
    """Refuse what no plan exists for, before anything is computed from it."""
    if (prefill.role, decode.role) != ("prefill", "decode"):
        raise PlanError(f"need a prefill and a decode layout, got {prefill.role} and {decode.role}", code="PD1021")
    for side in (prefill, decode):
        for code, found in (("PD1021", faults(side)), ("PD1004", split_faults(side))):
            if found:
                fault = found[0]
                text = f"{side.role} layout: {fault.path}: found {fault.found}, expected {fault.expected}"
                raise PlanError(text, code=code)
        if side.parallel.attn_tp > MAX_TP:
            text = f"attention TP {side.parallel.attn_tp} on {side.role}, the limit is {MAX_TP}"
            raise PlanError(text, code="PD1030")
        held = sum(entry.item_len for stage in side.stages for part in stage.components for entry in part.entries)
        if held * side.parallel.attn_tp > INT64_MAX:
            raise PlanError(f"one item of every {side.role} entry is over 2^63 bytes", code="PD1030")
    if prefill.page_size != decode.page_size:
        text = f"page size {prefill.page_size} on prefill, {decode.page_size} on decode"
        raise PlanError(text, code="PD1001")


def _check_shape(pair: Pair) -> bool:
    """Whether there is nothing to copy: both are placeholders. PlanError (PD1008) where their shapes differ."""
    src, dst = pair.src.entry, pair.dst.entry
    for what in ("outer", "groups", "inner_bytes"):
        ours, theirs = getattr(src, what), getattr(dst, what)
        if ours != theirs:
            name = f"{pair.src.kind} layer {pair.layer} {src.tensor}"
            text = f"{name}: {what} is {_shown(ours)} on prefill, {_shown(theirs)} on decode"
            raise PlanError(text, code="PD1008")
    return is_placeholder(src)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return " + ".join(f"{group.heads}×{group.width}" for group in value)
    return str(value)
