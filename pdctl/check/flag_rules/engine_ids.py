"""PD1028: vLLM engines must not share one fixed engine id.

NIXL and Mooncake tell engines apart by `engine_id`. Fixed in the transfer config of a pool with several replicas, it is
the name of several engines, and decode may read from the wrong prefill without an error. Left out, vLLM draws one.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdctl.check.groups import Group
from pdctl.flags import dialect
from pdctl_transfer.rules import Evidence, Finding, Outcome


def check_engine_ids(groups: Sequence[Group], options: Mapping[str, Any], where: str) -> Iterator[Outcome]:
    """One finding an id that more than one engine has. `options`: the fleet's transfer options, and their line."""
    holders: dict[str, list[tuple[str, str]]] = {}
    for group in groups:
        for identity, place in _fixed(group, options, where):
            holders.setdefault(identity, []).extend((member, place) for member in group.members)
    for identity, engines in holders.items():
        if len(engines) > 1:
            names = ", ".join(name for name, _ in engines[:4]) + (" …" if len(engines) > 4 else "")
            places = dict.fromkeys(place for _, place in engines)
            evidence = tuple(Evidence(place, f"engine_id: {identity}") for place in places)
            yield Finding("PD1028", names, evidence, {"engine_id": identity, "count": len(engines)})


def _fixed(group: Group, options: Mapping[str, Any], where: str) -> Iterator[tuple[str, str]]:
    """The group's fixed engine id, where it has one, and its origin."""
    if group.blocked or dialect(group.manifest.engine.name) != "vllm":
        return
    if options.get("engine_id") is not None:
        yield str(options["engine_id"]), where
    word = group.flag("--kv-transfer-config")
    try:
        config = json.loads(word.value) if word else None
    except (ValueError, RecursionError):
        return  # the derivation refuses it, with its line
    if word and isinstance(config, dict) and config.get("engine_id") is not None:
        yield str(config["engine_id"]), word.where
