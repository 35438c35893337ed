"""vLLM's registered caches as a layout manifest of origin `live`.

Pure. The worker knows its cache specs, layer by layer: `manifest` reads them. A peer is known by what it says at the
NIXL handshake only: `of_peer` rebuilds its manifest from that and from what the two must share, as the engines'
compatibility hash has assured (model, dtypes, attention backend).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from pdctl_transfer.layout.manifest import (
    Component,
    Engine,
    Entry,
    Group,
    Manifest,
    Model,
    Parallel,
    Role,
    Stage,
    Transfer,
)
from pdctl_transfer.plugins.sglang_layout import conv_groups

_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


class Side(Struct, frozen=True, kw_only=True):
    """What the engine knows beside its caches. `config` is the language model's config as a mapping."""

    role: Role
    version: str
    model: Model
    backend: str
    backend_version: str | None = None
    parallel: Parallel
    pp_rank: int = 0
    layers: tuple[int, int]
    kv_heads: int
    page_size: int
    kv_cache_dtype: str
    kv_layout: str | None
    speculative: dict[str, Any] | None = None
    config: Mapping[str, Any] = {}
    settings: dict[str, Any] | UnsetType = UNSET


def manifest(groups: Sequence[Any], side: Side) -> Manifest:
    """From the worker's KV cache groups: each has `layer_names` and a spec, or a spec a layer.

    Attention specs become `kv` (or `swa` where they have a window), recurrent ones `mamba`.
    """
    pools: dict[str, list[Entry]] = {"kv": []}
    for group in groups:
        for name in group.layer_names:
            spec = _spec_of(group.kv_cache_spec, name)
            pools.setdefault(kind_of(spec), []).extend(entries_of(layer_of(name), spec, side))
    spaces = {"kv": "page", "swa": "window_page", "mamba": "slot"}
    order = {"conv": 0, "temporal": 1}
    components = tuple(
        Component(kind, spaces[kind], tuple(sorted(found, key=lambda e: (order.get(e.tensor, 0), e.layer or 0))))  # type: ignore[arg-type]
        for kind, found in pools.items()
    )
    return _document(components, side)


def of_peer(metadata: Any, own: Manifest, tp: int) -> Manifest:
    """The prefill side's manifest from its NIXL metadata (`block_size`, `physical_blocks_per_logical_kv_block`,
    `block_lens`, `kv_cache_layout`), on the geometry of `own`, at its TP size.

    Attention pages get the length that the peer registered; recurrent state has the size that the model gives it. What
    the peer does not say there is not stated: the hash has compared a part of it, and `values` in the request the rest.
    """
    page_size = metadata.block_size * metadata.physical_blocks_per_logical_kv_block
    stages = tuple(
        replace(stage, components=tuple(_peer_component(c, own, metadata, page_size, tp) for c in stage.components))
        for stage in own.stages
    )
    return replace(
        own,
        role="prefill",
        model=replace(own.model, values_digest=UNSET),
        settings=UNSET,
        parallel=replace(own.parallel, attn_tp=tp),
        page_size=page_size,
        kv_layout=layout_name(metadata.kv_cache_layout) if own.kv_layout else None,
        stages=stages,
    )


def layer_of(name: str) -> int | None:
    """The layer's number in a module's name: `model.layers.3.self_attn.attn` → 3."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found else None


def layout_name(layout: str) -> str:
    """`nhd` or `hnd`, whatever axes for layers and blocks stand around: LBHNC and HND are one order within a block."""
    axes = [axis for axis in layout.upper() if axis in "NH"]
    return "hnd" if axes[:2] == ["H", "N"] else "nhd"


def _document(components: tuple[Component, ...], side: Side) -> Manifest:
    return Manifest(
        role=side.role,
        origin="live",
        engine=Engine("vllm", side.version),
        model=side.model,
        transfer=Transfer(side.backend, side.backend_version),
        parallel=side.parallel,
        page_size=side.page_size,
        kv_cache_dtype=side.kv_cache_dtype,
        kv_layout=side.kv_layout,
        speculative=side.speculative,
        stages=(Stage(side.pp_rank, side.layers, components),),
        settings=side.settings,
    )


def _spec_of(spec: Any, name: str) -> Any:
    return spec.kv_cache_specs[name] if hasattr(spec, "kv_cache_specs") else spec


def kind_of(spec: Any) -> str:
    """`kv`, `swa` with a window, `mamba` for a recurrent state."""
    if hasattr(spec, "shapes"):
        return "mamba"
    mla = type(spec).__name__.startswith("MLA")
    return "swa" if not mla and getattr(spec, "sliding_window", None) else "kv"


def entries_of(layer: int | None, spec: Any, side: Side) -> list[Entry]:
    """What one layer's cache is."""
    if hasattr(spec, "shapes"):
        return list(_recurrent(layer, spec, side))
    length = int(spec.real_page_size_bytes if hasattr(spec, "real_page_size_bytes") else spec.page_size_bytes)
    if type(spec).__name__.startswith("MLA"):
        return [
            Entry(layer, "latent", "replicated", spec.block_size, (Group(1, 1),), length // spec.block_size, length)
        ]
    outer = 1 if side.kv_layout == "hnd" else int(spec.block_size)
    inner = length // (outer * int(spec.num_kv_heads))
    return [Entry(layer, "kv", "split", outer, (Group(side.kv_heads, 1),), inner, length)]


def _recurrent(layer: int | None, spec: Any, side: Side) -> Iterable[Entry]:
    """The conv window, taps or channels first, and the temporal state."""
    tp = side.parallel.attn_tp
    (conv, temporal), (conv_dtype, state_dtype) = spec.shapes[:2], spec.dtypes[:2]
    taps, channels = (conv[0], conv[1]) if conv[0] < conv[1] else (conv[1], conv[0])
    taps_first = conv[0] < conv[1]
    size = conv_dtype.itemsize
    sizes = _sub_blocks(channels * tp, side.config)
    groups = conv_groups(sizes, side.config, tp) if sizes else (Group(tp, channels),)
    outer, inner = (taps, size) if taps_first else (1, taps * size)
    yield Entry(layer, "conv", "split", outer, groups, inner, taps * channels * size)
    inner = temporal[1] * temporal[2] * state_dtype.itemsize
    yield Entry(layer, "temporal", "split", 1, (Group(temporal[0] * tp, 1),), inner, temporal[0] * inner)


def _sub_blocks(channels: int, config: Mapping[str, Any]) -> tuple[int, ...]:
    """q, k and v of a gated delta net, where the config's sizes add up to what is registered."""
    keys = int(config.get("linear_num_key_heads") or 0) * int(config.get("linear_key_head_dim") or 0)
    values = int(config.get("linear_num_value_heads") or 0) * int(config.get("linear_value_head_dim") or 0)
    return (keys, keys, values) if 2 * keys + values == channels else ()


def _peer_component(component: Component, own: Manifest, metadata: Any, page_size: int, tp: int) -> Component:
    """Pages as the peer cuts them; everything else as the model makes it at the peer's TP."""
    if component.kind not in ("kv", "swa"):
        return replace(component, entries=tuple(_at_tp(entry, tp) for entry in component.entries))
    order = layout_name(metadata.kv_cache_layout)
    pages = [_page(entry, own.page_size, page_size, order, tp) for entry in component.entries]
    if all(len(stage.components) == 1 for stage in own.stages):  # else regions are shared, and padded to one length
        ratio = metadata.physical_blocks_per_logical_kv_block
        pages = [_of_length(page, length * ratio) for page, length in zip(pages, metadata.block_lens, strict=False)]
    return replace(component, entries=tuple(pages))


def _page(entry: Entry, old: int, new: int, order: str, tp: int) -> Entry:
    """A page of `old` tokens as one of `new` tokens, in the order of axes given."""
    token = entry.outer * entry.inner_bytes // old  # bytes of one token and head
    tokens_inside = entry.sharding == "split" and order == "hnd"
    outer, inner = (1, new * token) if tokens_inside else (new, token)
    return _at_tp(replace(entry, outer=outer, inner_bytes=inner), tp)


def _of_length(entry: Entry, length: int) -> Entry:
    """The page with the length that the peer registered, should it not be what the model and block size give."""
    if length == entry.item_len:
        return entry
    return replace(entry, inner_bytes=length * entry.inner_bytes // max(1, entry.item_len), item_len=length)


def _at_tp(entry: Entry, tp: int) -> Entry:
    """The entry with the item length of one of `tp` ranks; split heads shrink with it."""
    split = entry.sharding == "split"
    units = sum((max(1, group.heads // tp) if split else group.heads) * group.width for group in entry.groups)
    return replace(entry, item_len=entry.outer * units * entry.inner_bytes)
