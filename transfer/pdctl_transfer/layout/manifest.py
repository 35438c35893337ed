"""The layout manifest `pdctl.layout/v1` as immutable values.

One document describes one side of a pair: every buffer that takes part in the transfer and how it is cut over the
ranks. These types only hold it; `read.py` parses and limits input, `algebra.py` computes with it.
"""

from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

SCHEMA: Final = "pdctl.layout/v1"

#: Reserved layer ids of request-wide entries.
NGRAM_LAYER: Final = 4294967295
ROPE_RING_LAYER: Final = 4294967294
REQUEST_WIDE: Final = frozenset({NGRAM_LAYER, ROPE_RING_LAYER})

#: Keys of `settings` and their meaning; a key that is left out is not stated.
SETTINGS: Final = {
    "dtype": "element type that the model runs in, resolved",
    "state_dtype": "element type of a recurrent state, resolved",
    "kv_role": "the role that the engine's own flags give it: prefill, decode, both",
    "connector": "class of vLLM's connector",
    "attention_backend": "attention backend by the name that the engine takes",
    "hybrid_manager": "whether vLLM's hybrid KV cache manager is on",
    "dcp": "decode context parallelism",
    "pcp": "prefill context parallelism of vLLM",
    "cross_layers": "whether vLLM's NIXL connector lays its blocks across layers: on, off",
    "compat_hash": "whether vLLM's NIXL handshake compares hashes: on, off",
}

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
    """The model served; `config_digest` is taken over the geometry keys of its config, `values_digest` over the rest.

    Optional: a manifest without it says nothing of what the numbers in its buffers depend on.
    """

    name: str
    family: str | None = None
    config_digest: str | None = None
    values_digest: str | UnsetType = UNSET


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
    settings: dict[str, Any] | UnsetType = UNSET
    """Optional: what shapes no buffer, but is compared or refused by engines: see `SETTINGS`."""
