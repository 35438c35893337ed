"""Engine flags as people write them, into a request: aliases, `--a=b`, underscores, abbreviations, JSON values.

Flags that shape no buffer are passed over. What does shape one must be readable: a placeholder where a number belongs
is an InputError that names the flag.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pdctl.derive.flag_tables import CONNECTORS, KV_ROLES, TABLES, Flag
from pdctl.derive.request import Request
from pdctl.errors import InputError

NUMBERS: Final = frozenset({"tp", "pp", "dp", "cp", "replicas", "page_size"})
#: Environment variables that shape buffers, by engine, and the flag whose place they take.
VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "sglang": {"SGLANG_PP_LAYER_PARTITION": "pp-layer-partition", "SGLANG_MAMBA_SSM_DTYPE": "mamba-ssm-dtype"},
    "vllm": {
        "VLLM_KV_CACHE_LAYOUT": "kv-cache-layout",
        "VLLM_SSM_CONV_STATE_LAYOUT": "ssm-conv-state-layout",
        "VLLM_PP_LAYER_PARTITION": "pp-layer-partition",
    },
}


class Given(Struct, frozen=True):
    """A flag as it was given: its value (empty for a switch) and how it was spelled."""

    value: str
    spelled: str


def parse(engine: str, words: Sequence[str]) -> dict[str, Given]:
    """The flags of `words` that shape buffers, by pdctl's name for them; the last of several wins, as engines have it.

    Raises InputError for an abbreviation that could mean two of them, and for a value that is missing.
    """
    table = TABLES.get(engine, ())
    found: dict[str, Given] = {}
    place = 0
    while place < len(words):
        word, place = words[place], place + 1
        if not word.startswith("-"):
            continue
        spelled, equals, value = word.partition("=")
        flag, rest = _find(table, spelled)
        if flag is None:
            continue
        if flag.takes_value and not equals:
            if place >= len(words):
                raise InputError("a value is missing", where=spelled)
            value, place = words[place], place + 1
        if flag.name:
            name = f"{flag.name}.{rest}" if rest else flag.name
            found[name] = Given(value, spelled)
    return found


def _find(table: Sequence[Flag], spelled: str) -> tuple[Flag | None, str]:
    """The flag that is spelled so, and the part of a dotted one after the dot."""
    head, _, rest = spelled.partition(".")
    head = head.replace("_", "-") if head.startswith("--") else head
    for flag in table:
        if head in flag.spellings:
            return flag, rest
    if not head.startswith("--") or len(head) < 5:
        return None, ""
    meant = {flag: name for flag in table for name in flag.spellings if name.startswith(head)}
    if len(meant) > 1:
        raise InputError(f"could be {' or '.join(sorted(meant.values()))}", where=spelled)
    return next(iter(meant), None), rest


def apply(request: Request, words: Sequence[str], where: str | None = None) -> Request:
    """The request with the flags of `words` put over it. `where` (a file and line) goes before a flag in origins."""
    given = parse(request.engine, words)
    for name, flag in given.items():
        place = f"{where} {flag.spelled}" if where else flag.spelled
        request = _set(request, name, flag.value, place)
    return _attention_data_parallel(request, "enable-dp-attention" in given)


def apply_environment(request: Request, variables: Mapping[str, str], where: str | None = None) -> Request:
    """The request with the environment variables that shape buffers put over it; flags come after and win."""
    for variable, name in VARIABLES.get(request.engine, {}).items():
        if variables.get(variable):
            place = f"{where} {variable}" if where else variable
            request = _set(request, name, variables[variable], place)
    return request


def _set(request: Request, name: str, value: str, place: str) -> Request:
    origins = {**request.origins, name: place}
    head, _, part = name.partition(".")
    if head == "speculative":
        spoken = {part: _scalar(value)} if part else _object(value, place)
        origins["speculative"] = place
        return replace(request, speculative={**(request.speculative or {}), **spoken}, origins=origins)
    if head == "transfer":
        return _transfer(request, {part: value} if part else _object(value, place), place)
    if name == "config-overrides":
        return replace(request, config=_merged(request.config, _object(value, place)), origins=origins)
    if name == "role":
        if value not in ("prefill", "decode", "null", request.role):
            raise InputError(f"found {value}, expected prefill or decode", where=place)
        if value in ("prefill", "decode") and value != request.role:
            raise InputError(f"found {value}, but the side asked for is {request.role}", where=place)
        return request
    if name in NUMBERS and name != "replicas":
        return replace(request, **{name: _number(value, place)}, origins=origins)
    if name in ("kv_cache_dtype", "backend"):
        return replace(request, **{name: value}, origins=origins)
    if name == "replicas":
        _number(value, place)
    return replace(request, flags={**request.flags, name: value}, origins=origins)


def _attention_data_parallel(request: Request, enabled: bool) -> Request:
    """`--dp-size` counts replicas, or with `--enable-dp-attention` the ranks that attention data parallelism splits."""
    if not enabled or "replicas" not in request.flags:
        return request
    origins = {**request.origins, "dp": request.origins["replicas"]}
    return replace(request, dp=int(request.flags["replicas"]), origins=origins)


def _transfer(request: Request, spoken: Mapping[str, Any], place: str) -> Request:
    """A connector of vLLM: which backend it is, and that its role is this side's."""
    role = KV_ROLES.get(str(spoken.get("kv_role")))
    if role is not None and role != request.role:
        raise InputError(f"kv_role is {spoken['kv_role']}, but the side asked for is {request.role}", where=place)
    connector = spoken.get("kv_connector")
    if not isinstance(connector, str):
        return request
    backend = CONNECTORS.get(connector, connector)
    return replace(request, backend=backend, origins={**request.origins, "backend": f"{place} {connector}"})


def _number(value: str, place: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise InputError(f"found {value!r}, expected a whole number", where=place)
    return int(value)


def _scalar(value: str) -> int | str:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else value


def _object(value: str, place: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InputError(f"found {value[:60]!r}, which is not JSON: {error}", where=place) from None
    if not isinstance(found, dict):
        raise InputError(f"found {value[:60]!r}, expected a JSON object", where=place)
    return found


def _merged(config: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
