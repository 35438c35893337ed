"""SGLang's registered buffers (its KVArgs) as a layout manifest of origin `live`.

Pure: reads attributes, imports nothing of SGLang. What KVArgs does not carry (how many KV heads there are in all, how
many heads a conv state's sub-block has) comes from the model config that the engine itself loaded. A state that is
copied whole is described as one unit of its item's length.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from pdctl_transfer.layout.manifest import (
    NGRAM_LAYER,
    ROPE_RING_LAYER,
    Component,
    Engine,
    Entry,
    Group,
    IndexSpace,
    Manifest,
    Model,
    Parallel,
    Role,
    Stage,
    Transfer,
)
from pdctl_transfer.plugins.sglang_compressed import named

_INDEX_SPACE: Final[Mapping[str, IndexSpace]] = {
    "mamba": "slot",
    "qsa_pending": "row",
    "qsa_compressed": "page",
    "swa": "window_page",
    "dsa": "page",
    "minimax_index_k": "page",
    "minimax_dense_kv": "page",
    "block_scale": "page",
    "block_scale_swa": "window_page",
    "request_row": "row",
}
#: Head counts of linear-attention state, by the keys that configs use: (keys, values).
_LINEAR_HEADS: Final = (
    ("linear_num_key_heads", "linear_num_value_heads"),
    ("linear_attn_config.num_heads", "linear_attn_config.num_heads"),
)
#: Mamba2's geometry: heads, head size, groups, state size.
_MAMBA2: Final = (
    ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size"),
    ("mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state"),
)


class Side(Struct, frozen=True, kw_only=True):
    """What the engine knows beside its KVArgs. `config` is the language model's config as a mapping."""

    role: Role
    engine_version: str
    model: Model
    transfer: Transfer
    parallel: Parallel
    layers: tuple[int, int]
    num_layers: int
    kv_heads: int
    mla: bool
    speculative: dict[str, Any] | None = None
    config: Mapping[str, Any] = {}
    settings: dict[str, Any] | UnsetType = UNSET


def manifest(args: Any, side: Side) -> Manifest:
    """One rank's view as a manifest with its own stage only; `merge` puts the stages of a side together."""
    ratios = list(getattr(args, "mla_compression_ratios", None) or ())
    components = [
        Component("kv", "page", tuple(_packed("kv", args.kv_item_lens, ratios, side) or _kv_entries(args, side)))
    ]
    for index, kind in enumerate(args.state_types):
        name = str(getattr(kind, "value", kind))
        again = any(one.kind == name for one in components)
        packed = _packed(name, args.state_item_lens[index], ratios, side, again=again)
        entries = tuple(packed or _state_entries(name, index, args, side))
        bare = not packed and not _ids(args.state_layer_ids, index)
        pairs = "position" if name == "swa" and bare else "layer"
        components.append(Component(name, _INDEX_SPACE.get(name, "other"), entries, engine_pairs=pairs))  # type: ignore[arg-type]
    return Manifest(
        role=side.role,
        origin="live",
        engine=Engine("sglang", side.engine_version),
        model=side.model,
        transfer=side.transfer,
        parallel=side.parallel,
        page_size=args.page_size,
        kv_cache_dtype=str(args.kv_cache_dtype_str),
        kv_layout=args.kv_layout,
        speculative=side.speculative,
        stages=(Stage(int(args.pp_rank or 0), side.layers, tuple(components)),),
        settings=side.settings,
    )


def merge(parts: Iterable[Manifest]) -> Manifest:
    """One manifest of a side's stages, in order. ValueError when there is none."""
    ordered = sorted(parts, key=lambda part: part.stages[0].pp_rank)
    if not ordered:
        raise ValueError("no stage has been seen")
    first = ordered[0]
    values = {name: getattr(first, name) for name in first.__struct_fields__}
    return Manifest(**values | {"stages": tuple(stage for part in ordered for stage in part.stages)})


def _packed(kind: str, lengths: Sequence[int], ratios: list[int], side: Side, *, again: bool = False) -> list[Entry]:
    """A component of DeepSeek-V4, `again` a draft's of the same kind; empty where it is no such model."""
    found = named(kind, len(lengths), ratios, side.layers, side.num_layers, again=again) if ratios else None
    return [_whole(layer, tensor, length) for (layer, tensor), length in zip(found or (), lengths, strict=False)]


def _kv_entries(args: Any, side: Side) -> Iterable[Entry]:
    lengths, drafts = list(args.kv_item_lens), int(args.num_draft_entries or 0)
    own = len(lengths) - drafts
    ids: Sequence[int | None] = list(args.kv_layer_ids or ())
    tensors = 1 if side.mla else 2
    if not ids:
        ids = [
            *_in_order(range(*side.layers), own, tensors),
            *_in_order(range(side.num_layers, side.num_layers + drafts // tensors), drafts, tensors),
        ]
    for start, count in ((0, own), (own, drafts)):
        for index in range(start, start + count):
            tensor = "latent" if side.mla else "k" if index - start < count // 2 else "v"
            yield _page_entry(ids[index], tensor, lengths[index], args.page_size, side)


def _in_order(layers: range, count: int, tensors: int) -> list[int | None]:
    """Ids of a pool that registers each layer of its stage in order; unknown where the numbers say it does not."""
    known: list[int | None] = [*layers] * tensors
    return known if len(known) == count else [None] * count


def _page_entry(layer: int | None, tensor: str, length: int, page_size: int, side: Side) -> Entry:
    if side.mla or length == 0:
        return _whole(layer, tensor, length, outer=page_size if length % page_size == 0 else 1)
    local = max(1, side.kv_heads // side.parallel.attn_tp)
    return Entry(layer, tensor, "split", page_size, (Group(side.kv_heads, 1),), length // (page_size * local), length)


def _scales(layer: int | None, tensor: str, length: int, page_size: int, side: Side) -> Entry:
    """MXFP8's block scales: a head's lie together in pages of 128 tokens."""
    outer, local = 1 if page_size == 128 else page_size, max(1, side.kv_heads // side.parallel.attn_tp)
    return Entry(layer, tensor, "split", outer, (Group(side.kv_heads, 1),), length // (outer * local), length)


def _whole(layer: int | None, tensor: str, length: int, outer: int = 1) -> Entry:
    """A buffer that every rank holds whole: what is inside does not matter to a copy."""
    return Entry(layer, tensor, "replicated", outer, (Group(1, 1),), length // outer, length)


def _ids(table: Sequence[Sequence[int]] | None, index: int) -> list[int]:
    return list(table[index]) if table and index < len(table) and table[index] else []


def _state_entries(kind: str, index: int, args: Any, side: Side) -> Iterable[Entry]:
    lengths = list(args.state_item_lens[index])
    ids: list[int | None] = list(_ids(args.state_layer_ids, index)) or [None] * len(lengths)
    if kind in _KEY_VALUE:
        for place, length in enumerate(lengths):
            yield _page_entry(ids[place], "k" if place < len(lengths) // 2 else "v", length, args.page_size, side)
    elif kind in _SCALES:
        for place, length in enumerate(lengths):
            yield _scales(
                ids[place], "k_scale" if place < len(lengths) // 2 else "v_scale", length, args.page_size, side
            )
    elif kind == "mamba":
        yield from _recurrent(index, lengths, ids, args, side)
    else:
        if kind == "dsa" and ids.count(None) == len(ids):
            ids = _in_order(range(*side.layers), len(lengths), 1)
        rings = {length for layer, length in zip(ids, lengths, strict=True) if layer == ROPE_RING_LAYER}
        for layer, length in zip(ids, lengths, strict=True):
            ring = length in rings and (layer == ROPE_RING_LAYER or _is_draft(layer, side))
            yield _whole(layer, _ROPE if ring else _STATE_TENSOR.get(kind, kind), length)


def _is_draft(layer: int | None, side: Side) -> bool:
    """A draft's ring is numbered like a layer of the draft: only its length tells it."""
    return layer is not None and layer >= side.num_layers


#: Pools of K, then V, beside the main one.
_KEY_VALUE: Final = frozenset({"swa", "minimax_dense_kv"})
_SCALES: Final = frozenset({"block_scale", "block_scale_swa"})
_ROPE: Final = "rope_position"
_STATE_TENSOR: Final = {
    "qsa_pending": "pending_k",
    "qsa_compressed": "compressed_k",
    "dsa": "index_k",
    "minimax_index_k": "index_k",
}


def _recurrent(index: int, lengths: list[int], ids: list[int | None], args: Any, side: Side) -> Iterable[Entry]:
    """Conv states, then temporal states, then what is held whole: a row of tensors for each, layer by layer."""
    dims = _ids(args.state_dim_per_tensor, index)
    outers = _ids(args.state_slice_outer_counts, index) or [1] * len(lengths)
    cuts: Sequence[Any] = args.state_conv_shard_groups[index] if args.state_conv_shard_groups else [None] * len(lengths)
    rows: dict[int | None, int] = {}
    split_rows = max((ids[:place].count(ids[place]) for place, dim in enumerate(dims) if dim), default=0)
    for place, length in enumerate(lengths):
        row = rows[ids[place]] = rows.get(ids[place], -1) + 1
        if not dims[place]:
            name = "ple_ngram" if ids[place] == NGRAM_LAYER else "ple_short_conv"
            yield _whole(ids[place], name, length)
            continue
        outer, units = outers[place], dims[place]
        inner = length // (outer * units)
        if row == split_rows and not _look_up(side.config, "conv_L_cache"):  # LFM2 keeps windows alone
            groups: tuple[Group, ...] = (Group(units * side.parallel.attn_tp, 1),)
            yield Entry(ids[place], "temporal", "split", outer, groups, inner, length)
            continue
        name = f"conv{row}" if row else "conv"
        groups = (
            conv_groups(cuts[place], side.config, side.parallel.attn_tp) if cuts[place] else _mamba2_groups(units, side)
        )
        flat = "groups" if cuts[place] else "flat"
        yield Entry(ids[place], name, "split", outer, groups, inner, length, engine_slices=flat)  # type: ignore[arg-type]


def conv_groups(sizes: Sequence[int], config: Mapping[str, Any], tp: int) -> tuple[Group, ...]:
    """Sub-blocks q, k, v with the head counts of the config; by ranks where the config names none."""
    for keys, values in _LINEAR_HEADS:
        k_heads, v_heads = _look_up(config, keys), _look_up(config, values)
        if k_heads and v_heads:
            heads = [k_heads] * (len(sizes) - 1) + [v_heads]
            return tuple(Group(count, size // count) for count, size in zip(heads, sizes, strict=True))
    return tuple(Group(tp, size // tp) for size in sizes)


def _mamba2_groups(units: int, side: Side) -> tuple[Group, ...]:
    """x, B and C; the engine cuts them as one flat axis. One group where the config's keys are not known."""
    for names in _MAMBA2:
        heads, head_dim, groups, state = (_look_up(side.config, name) for name in names)
        if heads and head_dim and groups and state:
            return (Group(heads, head_dim), Group(groups, state), Group(groups, state))
    return (Group(units * side.parallel.attn_tp, 1),)


def _look_up(config: Mapping[str, Any], name: str) -> int | None:
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, int) else None
