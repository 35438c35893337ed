"""Random pairs of layouts: heads, widths, TP 1 to 16 on both sides, PP, replication, several groups, outer > 1."""

from itertools import pairwise
from typing import Any, NamedTuple

from hypothesis import strategies as st

from pdctl_transfer.layout.algebra import divides
from pdctl_transfer.layout.manifest import NGRAM_LAYER, ROPE_RING_LAYER, Component, Entry, Group, Manifest
from tests.unit.layout.build import manifest, stage

TPS = (1, 2, 3, 4, 6, 8, 12, 16)
HEADS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)


class Sides(NamedTuple):
    """A prefill and a decode layout of one model."""

    prefill: Manifest
    decode: Manifest


@st.composite
def shapes(draw: Any, tps: tuple[int, int]) -> dict[str, Any]:
    """What an entry holds, of a kind that both attention-TP sizes can cut."""
    if draw(st.booleans()):
        heads = st.sampled_from([h for h in HEADS if all(divides(h, tp) for tp in tps)])
        cut = draw(st.lists(st.builds(Group, heads, st.integers(1, 5)), min_size=1, max_size=4))
        sharding = "split"
    else:
        cut = draw(st.lists(st.builds(Group, st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=2))
        sharding = "replicated"
    return {
        "sharding": sharding,
        "groups": tuple(cut),
        "outer": draw(st.sampled_from([1, 1, 2, 3, 16])),
        "inner_bytes": draw(st.sampled_from([0, 1, 2, 6, 8, 24])),
    }


@st.composite
def _components(draw: Any, layers: int, tps: tuple[int, int]) -> dict[str, list[tuple[int, str, dict[str, Any]]]]:
    """Entries of the whole model by kind: (layer, tensor, shape); a draft's layer is `layers`."""
    found: dict[str, list[tuple[int, str, dict[str, Any]]]] = {}
    for kind in draw(st.lists(st.sampled_from(["kv", "mamba", "swa", "novel"]), min_size=1, max_size=3, unique=True)):
        tensors = draw(st.lists(st.tuples(st.sampled_from("kvct"), shapes(tps)), min_size=1, max_size=2))
        ids = draw(st.lists(st.integers(0, layers), min_size=1, max_size=layers + 1, unique=True))
        found[kind] = [(layer, tensor, shape) for tensor, shape in tensors for layer in ids]
    if draw(st.booleans()):
        shape = {**draw(shapes(tps)), "sharding": "replicated"}
        found["qsa_pending"] = [(draw(st.sampled_from([NGRAM_LAYER, ROPE_RING_LAYER])), "ring", shape)]
    return found


@st.composite
def _side(draw: Any, role: str, tp: int, layers: int, kinds: dict[str, list[Any]]) -> Manifest:
    cuts = sorted(draw(st.sets(st.integers(1, layers - 1), max_size=2))) if layers > 1 else []
    bounds = [0, *cuts, layers]
    everywhere = draw(st.booleans())  # pools that span all layers on every stage
    stages = []
    for rank, (start, end) in enumerate(pairwise(bounds)):
        components = []
        for kind, entries in kinds.items():
            here = []
            for layer, tensor, shape in entries:
                draft = layer == layers and end == layers
                computed = start <= layer < end or (everywhere and layer < layers)
                if computed or draft or layer in (NGRAM_LAYER, ROPE_RING_LAYER):
                    here.append(Entry(layer=layer, tensor=tensor, item_len=0, **shape))
            parts = [here]
            if draw(st.booleans()):  # a draft's entries may be a component of their own, of the same kind
                parts = [[e for e in here if e.layer != layers], [e for e in here if e.layer == layers]]
            components += [Component(kind, "page", tuple(draw(_kept_order(part)))) for part in parts]
        stages.append(stage(rank, (start, end), *components))
    return manifest(role, tp, *stages)


@st.composite
def _kept_order(draw: Any, entries: list[Entry]) -> list[Entry]:
    """Any order of registration in which equal (layer, tensor) keep theirs: they cannot be told apart otherwise."""
    keys = [(entry.layer, entry.tensor) for entry in entries]
    rest = {key: [entry for entry, k in zip(entries, keys, strict=True) if k == key] for key in set(keys)}
    return [rest[key].pop(0) for key in draw(st.permutations(keys))]


@st.composite
def sides(draw: Any, tps: tuple[int, ...] = TPS) -> Sides:
    """Two layouts of one random model."""
    prefill_tp, decode_tp = draw(st.sampled_from(tps)), draw(st.sampled_from(tps))
    layers = draw(st.integers(1, 4))
    kinds = draw(_components(layers, (prefill_tp, decode_tp)))
    return Sides(
        draw(_side("prefill", prefill_tp, layers, kinds)),
        draw(_side("decode", decode_tp, layers, kinds)),
    )
