"""What a connector's handshake compares: data, by engine and backend, each with its source.

A contract holds for the connector it was read in. vLLM's NIXL connectors hash all that follows and refuse a peer with
another hash: both engines are healthy and each request fails. Its Mooncake connector has no such hash, SGLang
compares page size and KV dtype only.
"""

from typing import Final

from msgspec import Struct

from pdctl_transfer.rules.pair import Pair


class Contract(Struct, frozen=True):
    """Fields that the handshake compares, by their names in `FIELDS`; `lone` are those that no other rule is about."""

    engine: str
    backend: str
    compares: frozenset[str]
    lone: tuple[tuple[str, str], ...]
    who: str
    source: str


CONTRACTS: Final = (
    Contract(
        engine="vllm",
        backend="nixl",
        compares=frozenset({"engine_version", "model", "dtype", "kv_cache_dtype", "speculative"}),
        lone=(
            ("transfer_mode", "pages move by"),
            ("attention_backend", "attention backend"),
            ("hybrid_manager", "hybrid KV cache manager"),
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


def compares(pair: Pair, name: str) -> bool:
    """Whether the pair's handshake compares the field."""
    contract = contract_of(pair)
    return contract is not None and name in contract.compares
