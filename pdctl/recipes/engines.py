"""What of an engine's settings becomes a field of the fleet file. Each takes what it carries out of the settings."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from pdctl.derive.connectors import mover, read
from pdctl.flags import load
from pdctl.recipes.left import Left
from pdctl.recipes.words import names

Role = Literal["prefill", "decode"]
Settings = dict[str, dict[str, Any]]
#: Settings of both roles that the fleet says once, or pdctl says itself: what was carried goes out of them.
Shared = Callable[[Mapping[str, Any], Settings, Mapping[str, Any], list[Left]], dict[str, Any]]
#: Settings of one role that are fields of its pool; `keys`: the setting of each flag by its name in the engine's table.
Fields = Callable[[Role, dict[str, Any], Mapping[str, str], list[Left]], dict[str, Any]]

BACKENDS: Final = ("mooncake", "nixl", "mori", "ascend")
SET_BY_PDCTL: Final = "pdctl sets it"


class Engine(Struct, frozen=True):
    """How the settings of one engine are read."""

    shared: Shared
    fields: Fields


def _sglang_shared(
    fleet: Mapping[str, Any], settings: Settings, backend: Mapping[str, Any], left: list[Left]
) -> dict[str, Any]:
    del backend
    found = _named(fleet, settings, "sglang", left, ("--model-path", "--host", "--port"))
    keys = {role: names(load("sglang"), given) for role, given in settings.items()}
    flag = "--disaggregation-transfer-backend"
    words = {role: settings[role].get(keys[role].get(flag, ""), "mooncake") for role in settings}
    (word, *others) = dict.fromkeys(words.values())
    if not others and word in BACKENDS:
        for role, given in settings.items():
            given.pop(keys[role].get(flag, ""), None)
        found["transfer"] = {"backend": word}
    return found


def _vllm_shared(
    fleet: Mapping[str, Any], settings: Settings, backend: Mapping[str, Any], left: list[Left]
) -> dict[str, Any]:
    found = _named(fleet, settings, "vllm", left, ("--model", "--host", "--port"))
    keys = {role: names(load("vllm"), given) for role, given in settings.items()}
    spoken = [settings[role].get(keys[role].get("--kv-transfer-config", "")) for role in settings]
    if spoken == [None, None]:
        named = backend.get("connector") or "nixl"
        return {**found, "transfer": {"backend": named}} if named in BACKENDS else found
    tree = read(_object(spoken[0]))
    moves = mover(tree) if tree else None
    if moves and moves.kind.backend in BACKENDS:
        found["transfer"] = {"backend": moves.kind.backend}
    return found


def _named(
    fleet: Mapping[str, Any], settings: Settings, engine: str, left: list[Left], ours: tuple[str, ...]
) -> dict[str, Any]:
    """The served name, where both roles have one; and what pdctl sets itself goes out."""
    keys = {role: names(load(engine), given) for role, given in settings.items()}
    for role, given in settings.items():
        for flag in ours:
            if flag in keys[role]:
                key = keys[role][flag]
                del given[key]
                left.append(Left(f"backend.{engine}_config.{role}.{key}", SET_BY_PDCTL))
    flag = "--served-model-name"
    served = [settings[role].get(keys[role].get(flag, "")) for role in settings]
    if not isinstance(served[0], str) or served[0] != served[1]:
        return {}
    for role, given in settings.items():
        del given[keys[role][flag]]
    return {"model": {**fleet["model"], "name": served[0]}}


def _object(value: Any) -> Mapping[str, Any]:
    """A JSON object, written as one or as text; empty where it is neither: the engine's own reader says so later."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _taken(given: dict[str, Any], keys: Mapping[str, str], fields: Mapping[str, str]) -> dict[str, Any]:
    """Settings that are fields of the same meaning, out of `given`."""
    return {field: given.pop(keys[flag]) for flag, field in fields.items() if given.get(keys.get(flag, "")) is not None}


def _size(given: Mapping[str, Any], key: str | None) -> int | None:
    """A size that a field can hold; 1 where it is not given."""
    found = given.get(key, 1) if key else 1
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def _sglang_fields(role: Role, given: dict[str, Any], keys: Mapping[str, str], left: list[Left]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if given.get(keys.get("--disaggregation-mode", "")) == role:
        del given[keys["--disaggregation-mode"]]
    port = keys.get("--disaggregation-bootstrap-port", "")
    if role == "decode" and port in given:
        del given[port]
        why = "a decode engine opens none: a request names that of its prefill engine"
        left.append(Left(f"backend.sglang_config.decode.{port}", why))
    elif given.get(port) is not None:
        found["ports"] = {"bootstrap": given.pop(port)}
    found |= _taken(given, keys, {"--page-size": "page_size", "--kv-cache-dtype": "kv_cache_dtype", "--pp-size": "pp"})
    if _size(given, keys.get("--ep-size")) is not None:
        found |= _taken(given, keys, {"--ep-size": "ep"})
    attention = given.get(keys.get("--enable-dp-attention", "")) is True
    tp, dp, cp = (_size(given, keys.get(flag)) for flag in ("--tp-size", "--dp-size", "--attn-cp-size"))
    if tp is None or dp is None or cp is None or tp % ((dp if attention else 1) * cp):
        return found
    # Without DP attention `--dp-size` counts engines behind one door, which no field says: it stays a flag.
    sizes = {"attn_tp": tp // ((dp if attention else 1) * cp), **({"dp": dp} if attention else {}), "cp": cp}
    for flag in ("--tp-size", "--attn-cp-size", *(("--dp-size",) if attention or dp == 1 else ())):
        given.pop(keys.get(flag, ""), None)
    return {**found, **{name: size for name, size in sizes.items() if size > 1 or name == "attn_tp"}}


def _vllm_fields(role: Role, given: dict[str, Any], keys: Mapping[str, str], left: list[Left]) -> dict[str, Any]:
    del role, left
    fields = {
        "--tensor-parallel-size": "attn_tp",
        "--data-parallel-size": "dp",
        "--pipeline-parallel-size": "pp",
        "--block-size": "page_size",
        "--kv-cache-dtype": "kv_cache_dtype",
    }
    found = _taken(given, keys, fields)
    switch = keys.get("--enable-expert-parallel", "")
    width = _width(found, given.get(keys.get("--prefill-context-parallel-size", ""), 1))
    if given.get(switch) is True and width is not None and width > 1:  # it spreads experts over all ranks
        del given[switch]
        found["ep"] = width
    return found


def _width(found: Mapping[str, Any], pcp: Any) -> int | None:
    """Ranks of one stage; None where a size is no number."""
    sizes = [_size({"size": size}, "size") for size in (found.get("attn_tp", 1), found.get("dp", 1), pcp)]
    return math.prod(size or 1 for size in sizes) if None not in sizes else None


ENGINES: Final[Mapping[str, Engine]] = {
    "sglang": Engine(_sglang_shared, _sglang_fields),
    "vllm": Engine(_vllm_shared, _vllm_fields),
}
