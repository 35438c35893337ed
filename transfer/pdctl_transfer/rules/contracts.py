"""What a connector's handshake compares: data, by engine and backend, factor by factor, each with its releases.

A contract holds for the connector it was read in. vLLM's NIXL connectors hash all that follows and refuse a peer with
another hash: both engines are healthy and each request fails. Its Mooncake connector has no such hash, SGLang
compares page size and KV dtype only.
"""

from typing import Final

from msgspec import Struct

from pdctl_transfer.rules.pair import Pair, setting
from pdctl_transfer.rules.releases import applies


class Factor(Struct, frozen=True):
    """One thing that a handshake compares: a name of `FIELDS`, and the engine's own for it in its source.

    `said` are the words for it where no other rule is about it; empty where one is.
    """

    field: str
    named: str
    said: str = ""
    since: str | None = None
    until: str | None = None


class Contract(Struct, frozen=True):
    """What one engine's handshake over one backend compares."""

    engine: str
    backend: str
    factors: tuple[Factor, ...]
    who: str
    source: str


CONTRACTS: Final = (
    Contract(
        engine="vllm",
        backend="nixl",
        factors=(
            Factor("engine_version", "vllm_version"),
            Factor("engine_version", "nixl_connector_version"),
            Factor("model", "model"),
            Factor("dtype", "dtype"),
            Factor("config_digest", "num_kv_heads"),
            Factor("config_digest", "head_size"),
            Factor("config_digest", "num_hidden_layers"),
            Factor("attention_backend", "attn_backend_name", "attention backend"),
            Factor("kv_cache_dtype", "cache_dtype"),
            Factor("hybrid_manager", "is_hma_enabled", "hybrid KV cache manager"),
            Factor("speculative", "speculative_config", since="0.28.0"),
            Factor("transfer_mode", "transfer_mode", "pages move by", since="0.28.0"),
            Factor("cross_layers", "cross_layers_blocks", "blocks across layers", until="0.29.0"),
        ),
        who="vLLM's NIXL handshake",
        source="vLLM 0.32.0 nixl/metadata.py:133, compute_nixl_compatibility_hash",
    ),
)


def contract_of(pair: Pair) -> Contract | None:
    """The contract of the pair's one engine over its backend; None where the handshake is not known to compare."""
    for contract in CONTRACTS:
        if pair.engines == {contract.engine} and pair.backend == contract.backend:
            return contract
    return None


def factors(pair: Pair) -> tuple[Factor, ...]:
    """What the pair's handshake compares, in the releases of its sides; nothing where decode is told not to."""
    contract = contract_of(pair)
    every = contract.factors if contract and setting(pair.decode, "compat_hash") != "off" else ()
    return tuple(factor for factor in every if applies(factor.since, factor.until, *pair.versions))


def compares(pair: Pair, name: str) -> bool:
    """Whether the pair's handshake compares the field."""
    return any(factor.field == name for factor in factors(pair))
