"""PD1028: vLLM engines must not share one fixed engine id.

NIXL and Mooncake tell engines apart by `engine_id`. Fixed in the transfer config of a pool with several replicas, it is
the name of several engines, and decode may read from the wrong prefill without an error. Left out, vLLM draws one.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pdctl.check.fleet_rules.words import engine_of, flag
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.rules import Evidence, Finding, Outcome


def check_engine_ids(loaded: LoadedFleet, _config: Mapping[str, Any]) -> Iterator[Outcome]:
    """One finding an id that more than one engine has."""
    holders: dict[str, list[tuple[str, str]]] = {}
    for pool in (*loaded.pools("prefill"), *loaded.pools("decode")):
        for identity, where in _fixed(loaded, pool):
            holders.setdefault(identity, []).extend((member, where) for member in pool.members)
    for identity, engines in holders.items():
        if len(engines) > 1:
            names = ", ".join(name for name, _ in engines[:4]) + (" …" if len(engines) > 4 else "")
            evidence = tuple(
                Evidence(where, f"engine_id: {identity}") for where in dict.fromkeys(w for _, w in engines)
            )
            yield Finding("PD1028", names, evidence, {"engine_id": identity, "count": len(engines)})


def _fixed(loaded: LoadedFleet, pool: Pool) -> Iterator[tuple[str, str]]:
    """The pool's fixed engine id, where it has one, and its origin."""
    if engine_of(loaded, pool) != "vllm":
        return
    shared = loaded.fleet.transfer.options.get("engine_id")
    if shared is not None:
        yield str(shared), loaded.where("transfer.options.engine_id")
    word = flag(loaded, pool, "--kv-transfer-config")
    try:
        config = json.loads(word.value) if word else None
    except (ValueError, RecursionError):
        return  # the derivation refuses it, with its line
    if word and isinstance(config, dict) and config.get("engine_id") is not None:
        yield str(config["engine_id"]), word.where
