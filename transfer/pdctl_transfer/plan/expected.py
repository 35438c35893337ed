"""What the contract says belongs where, enumerated: the ground truth of the prover, written without the planner."""

from dataclasses import dataclass

import numpy as np

from pdctl_transfer.layout.manifest import REQUEST_WIDE, Entry, Manifest
from pdctl_transfer.plan.columns import Column

Shape = tuple[object, ...]


@dataclass(frozen=True)
class Target:
    """A decode entry that has a partner, and that partner. `index` counts the entries of a stage in order."""

    kind: str
    layer: int | None
    tensor: str
    n: int
    dst: Entry
    dst_pp: int
    index: int
    src: Entry
    src_pp: int
    src_index: int

    @property
    def src_shape(self) -> Shape:
        return _shape(self.src)

    @property
    def dst_shape(self) -> Shape:
        return _shape(self.dst)


def held_units(entry: Entry, tp: int, rank: int) -> Column:
    """The units of the whole axis that `rank` of `tp` holds, in its own order; int64 of shape [local units]."""
    own = []
    base = 0
    for group in entry.groups:
        if entry.sharding == "replicated":
            heads = np.arange(group.heads)
        elif group.heads >= tp:
            heads = np.arange(group.heads).reshape(tp, -1)[rank]
        else:
            heads = np.repeat(np.arange(group.heads), tp // group.heads)[rank : rank + 1]
        own.append((base + heads[:, None] * group.width + np.arange(group.width)).ravel())
        base += group.heads * group.width
    return np.concatenate(own)


def targets(prefill: Manifest, decode: Manifest) -> dict[tuple[int, int], Target]:
    """Every decode entry that prefill must fill, by (stage, index)."""
    layers = max(stage.layers[1] for stage in prefill.stages)
    sources: dict[tuple[object, ...], tuple[Entry, int, int, int]] = {}
    bare: set[str] = set()
    for pp, first, end, kind, entry, n, index, place in _walk(prefill):
        held = entry.layer is None or entry.layer >= layers or entry.layer in REQUEST_WIDE
        if held or first <= (entry.layer or 0) < end:
            sources.setdefault((kind, entry.layer, entry.tensor, n), (entry, n, pp, index))
        sources.setdefault(("place", kind, place), (entry, n, pp, index))
        bare |= {kind} if entry.layer is None else set()
    wanted = _walk(decode)
    bare |= {kind for *_, kind, entry, _, _, _ in wanted if entry.layer is None}
    found = {}
    for pp, _, _, kind, entry, n, index, place in wanted:
        key = ("place", kind, place) if kind in bare else (kind, entry.layer, entry.tensor, n)
        if key in sources:
            src, src_n, src_pp, src_index = sources[key]
            layer, n = (src.layer, src_n) if entry.layer is None else (entry.layer, n)
            found[pp, index] = Target(kind, layer, entry.tensor, n, entry, pp, index, src, src_pp, src_index)
    return found


def _walk(manifest: Manifest) -> list[tuple[int, int, int, str, Entry, int, int, int]]:
    """(stage rank, first and end layer, kind, entry, occurrence, index in the stage, place within the kind)."""
    out = []
    places: dict[str, int] = {}
    for stage in sorted(manifest.stages, key=lambda stage: stage.pp_rank):
        seen: dict[tuple[object, ...], int] = {}
        index = 0
        for component in stage.components:
            for entry in component.entries:
                key = (component.kind, entry.layer, entry.tensor)
                n = seen[key] = seen.get(key, -1) + 1
                place = places[component.kind] = places.get(component.kind, -1) + 1
                out.append((stage.pp_rank, *stage.layers, component.kind, entry, n, index, place))
                index += 1
    return out


def _shape(entry: Entry) -> Shape:
    return entry.sharding, entry.outer, entry.groups, entry.inner_bytes, entry.item_len
