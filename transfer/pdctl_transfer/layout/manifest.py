"""The layout manifest `pdctl.layout/v1` as immutable values.

One document describes one side of a pair: every buffer that takes part in the transfer and how it is cut over the
ranks. These types only hold it; `read.py` parses and limits input, `algebra.py` computes with it.
"""

from typing import Any, Final, Literal

from msgspec import Struct, field

SCHEMA: Final = "pdctl.layout/v1"

#: Reserved layer ids of request-wide entries.
NGRAM_LAYER: Final = 4294967295
ROPE_RING_LAYER: Final = 4294967294
REQUEST_WIDE: Final = frozenset({NGRAM_LAYER, ROPE_RING_LAYER})

Role = Literal["prefill", "decode"]
Origin = Literal["derived", "live", "file"]
Sharding = Literal["split", "replicated"]
IndexSpace = Literal["page", "window_page", "slot", "row", "other"]
EngineSlices = Literal["groups", "flat"]
EnginePairs = Literal["layer", "position"]


class Group(Struct, frozen=True, gc=False):
    """`heads` indivisible heads of `width` units each, split on their own."""

    heads: int
    width: int


class Entry(Struct, frozen=True, omit_defaults=True, gc=False):
    """One registered buffer: an array of items of `item_len` bytes, shaped `[outer][units][inner_bytes]`."""

    layer: int | None
    tensor: str
    sharding: Sharding
    outer: int
    groups: tuple[Group, ...]
    inner_bytes: int
    item_len: int
    engine_slices: EngineSlices = "groups"


class Component(Struct, frozen=True, omit_defaults=True, gc=False):
    """Entries addressed by one kind of index, travelling together. `kind` is the wire name."""

    kind: str
    index_space: IndexSpace
    entries: tuple[Entry, ...]
    engine_pairs: EnginePairs = "layer"


class Stage(Struct, frozen=True, gc=False):
    """A pipeline stage; `layers` is half-open and says what the stage computes."""

    pp_rank: int
    layers: tuple[int, int]
    components: tuple[Component, ...]


class Engine(Struct, frozen=True):
    """The engine that holds the buffers."""

    name: str
    version: str | None = None


class Model(Struct, frozen=True):
    """The model served; `config_digest` is taken over the geometry keys of its config."""

    name: str
    family: str | None = None
    config_digest: str | None = None


class Transfer(Struct, frozen=True):
    """The backend that moves the bytes: mooncake, nixl, mori, ascend, …"""

    backend: str
    version: str | None = None


class Parallel(Struct, frozen=True):
    """Parallel sizes; `attn_tp` is tp / dp / cp."""

    attn_tp: int
    attn_cp: int = 1
    pp: int = 1
    dp: int = 1


class Manifest(Struct, frozen=True):
    """One side of a pair. `speculative` and `kv_layout` are None where nothing is stated."""

    role: Role
    origin: Origin
    engine: Engine
    model: Model
    transfer: Transfer
    parallel: Parallel
    page_size: int
    kv_cache_dtype: str
    kv_layout: str | None
    speculative: dict[str, Any] | None
    stages: tuple[Stage, ...]
    schema: str = field(default=SCHEMA)
