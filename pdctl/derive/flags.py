"""Engine flags as people write them, into a request: aliases, `--a=b`, underscores, abbreviations, JSON values.

Flags that shape no buffer are passed over. What does shape one must be readable: a placeholder where a number belongs
is an InputError that names the flag.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from pdctl.derive import connectors
from pdctl.derive.flag_tables import KV_ROLES, SHAPING
from pdctl.derive.request import Request
from pdctl.errors import InputError
from pdctl.flags import Given, dialect, load, read_words, verdicts
from pdctl_transfer.layout.digest import merged

NUMBERS: Final = frozenset({"tp", "pp", "dp", "cp", "replicas", "page_size"})
#: Environment variables that shape buffers, by engine, and the flag whose place they take.
VARIABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "sglang": {
        "SGLANG_PP_LAYER_PARTITION": "pp-layer-partition",
        "SGLANG_MAMBA_SSM_DTYPE": "mamba-ssm-dtype",
        "SGLANG_DSV4_KV_LAYOUT": "dsv4-kv-layout",
        "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "dsv4-compressed-kv-layout",
        "SGLANG_DSV4_COMPRESS_STATE_DTYPE": "dsv4-compress-state-dtype",
        "SGLANG_OPT_USE_ONLINE_COMPRESS": "online-compress",
        "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP": "online-compress-mtp",
    },
    "vllm": {
        "VLLM_KV_CACHE_LAYOUT": "kv-cache-layout",
        "VLLM_SSM_CONV_STATE_LAYOUT": "ssm-conv-state-layout",
        "VLLM_PP_LAYER_PARTITION": "pp-layer-partition",
    },
}


def parse(engine: str, words: Sequence[str]) -> dict[str, Given]:
    """The flags of `words` that shape buffers, by pdctl's name for them; the last of several wins, as engines have it.

    What `words` hold besides is passed over here: `pdctl.engines.refusals` judges it.
    """
    engine = dialect(engine)
    if engine not in SHAPING:
        return {}
    table = load(engine)
    names = {flag.name: name for spelled, name in SHAPING[engine].items() if (flag := table.flag(spelled))}
    found: dict[str, Given] = {}
    for one in read_words(table, words).given:
        name = names.get(one.name)
        if name is not None and not one.off:
            found[f"{name}.{one.part}" if one.part else name] = one
    return found


def refuse_words(engine: str, words: Sequence[str]) -> tuple[str, ...]:
    """Notes about flags that only another version may have. Raises InputError for what no version would take."""
    engine = dialect(engine)
    if engine not in SHAPING:
        return ()
    table = load(engine)
    version = table.version if engine == "reference" else None
    notes = []
    for verdict in verdicts(table, read_words(table, words), version):
        if verdict.refused:
            raise InputError(verdict.message, where="engine flags", code=verdict.code, hint=verdict.hint)
        notes.append(f"{verdict.message}: {verdict.hint}")
    return tuple(notes)


def apply(request: Request, words: Sequence[str], places: Sequence[str] = ()) -> Request:
    """The request with the flags of `words` put over it. `places`: the file and line of each word, for origins.

    Raises InputError for a value that is missing or that pdctl cannot read.
    """
    given = parse(request.engine, words)
    for name, flag in given.items():
        place = f"{places[flag.index]} {flag.spelled}" if places else flag.spelled
        if flag.flag.takes and not flag.values:
            raise InputError("a value is missing", where=place, code="PD0032")
        request = _set(request, name, flag.value, place)
    return _attention_data_parallel(request, "enable-dp-attention" in given)


def apply_environment(
    request: Request, variables: Mapping[str, str], lines: Mapping[str, str] | None = None
) -> Request:
    """The request with the environment variables that shape buffers put over it; flags come after and win.

    `lines`: the file and line of each variable, for origins.
    """
    for variable, name in VARIABLES.get(dialect(request.engine), {}).items():
        if variables.get(variable):
            place = f"{lines[variable]} {variable}" if lines else variable
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
    if head == "attention-config":
        said = _attention({part: value} if part else _object(value, place))
        return replace(
            request,
            flags={**request.flags, **said},
            origins={**request.origins, **dict.fromkeys(said, place)},
        )
    if name == "config-overrides":
        return replace(request, config=merged(request.config, _object(value, place)), origins=origins)
    if name == "role":
        if value not in ("prefill", "decode", "null", request.role):
            raise InputError(f"found {value}, expected prefill or decode", where=place)
        return _role(request, value, place)
    if name in NUMBERS and name != "replicas":
        return replace(request, **{name: _number(value, place)}, origins=origins)
    if name in ("kv_cache_dtype", "backend"):
        return replace(request, **{name: value}, origins=origins)
    if name in ("replicas", "dcp", "pcp"):
        _number(value, place)
    return replace(request, flags={**request.flags, name: value}, origins=origins)


def _attention(spoken: Mapping[str, Any]) -> dict[str, str]:
    """What vLLM's attention config says of buffers: the backend, and the type of a sparse index, in two spellings."""
    names = {"backend": "attention-backend", "indexer_kv_dtype": "indexer-kv-dtype"}
    said = {flag: value for key, flag in names.items() if isinstance(value := spoken.get(key), str)}
    four = spoken.get("use_fp4_indexer_cache")  # of releases before 0.32
    return {**said, "indexer-kv-dtype": "mxfp4"} if four is True or str(four).lower() == "true" else said


def _attention_data_parallel(request: Request, enabled: bool) -> Request:
    """`--dp-size` counts replicas, or with `--enable-dp-attention` the ranks that attention data parallelism splits."""
    if not enabled or "replicas" not in request.flags:
        return request
    origins = {**request.origins, "dp": request.origins["replicas"]}
    return replace(request, dp=int(request.flags["replicas"]), origins=origins)


def _transfer(request: Request, spoken: Mapping[str, Any], place: str) -> Request:
    """A connector of vLLM: what moves the state in its tree, with backend and role; hybrid caches if all know them."""
    tree = connectors.read(spoken)
    if tree is None:
        return _role(request, KV_ROLES.get(str(spoken.get("kv_role"))), place)
    moves = connectors.mover(tree) or tree
    request = _role(request, KV_ROLES.get(str(moves.role)), place)
    origins = {**request.origins, "connector": place}
    flags = {**request.flags, "connector": moves.name}
    for option, name in connectors.HASHED.items():
        if option in moves.options:
            word = "on" if str(moves.options[option]).lower() == "true" else "off"
            flags, origins = {**flags, name: word}, {**origins, name: f"{place} {option}"}
    if not tree.hybrid:
        flags, origins = {**flags, "disable-hybrid": ""}, {**origins, "disable-hybrid": f"{place} {tree.label}"}
    if moves.kind.does not in ("moves", "shares"):
        return replace(request, flags=flags, origins=origins)
    origins["backend"] = f"{place} {tree.label}"
    return replace(request, backend=moves.kind.backend, flags=flags, origins=origins)


def apply_options(request: Request, options: Mapping[str, Any], words: Sequence[str], place: str) -> Request:
    """The request with vLLM's transfer options put over it, unless the flags name a connector of their own."""
    if dialect(request.engine) != "vllm" or transfer_of(words) is not None:
        return request
    return _transfer(request, options, place)


def transfer_of(words: Sequence[str]) -> dict[str, Any] | None:
    """VLLM's transfer config among the flags; None where there is none. Raises InputError for what is no object."""
    spoken: dict[str, Any] | None = None
    for name, flag in parse("vllm", words).items():
        head, _, part = name.partition(".")
        if head == "transfer":
            spoken = {**(spoken or {}), **({part: flag.value} if part else _object(flag.value, flag.spelled))}
    return spoken


def _role(request: Request, role: str | None, place: str) -> Request:
    """The role that flags give the side: judged with the pair (PD1033), where it is not the side's own."""
    if role in (None, "null"):
        return request
    return replace(
        request, flags={**request.flags, "kv_role": str(role)}, origins={**request.origins, "kv_role": place}
    )


def refuse_other_role(request: Request) -> None:
    """InputError where one side alone is asked for and its own flags give it the other role."""
    role = request.flags.get("kv_role", "both")
    if role not in ("both", request.role):
        raise InputError(
            f"found {role}, but the side asked for is {request.role}", where=request.origins.get("kv_role", "--role")
        )


def _number(value: str, place: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 9:
        raise InputError(f"found {value!r}, expected a whole number from 1", where=place, code="PD0032")
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
