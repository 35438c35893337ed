"""What a running engine has settled that shapes no buffer: the manifest's `settings`, and its model's digests."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET

from pdctl_transfer.layout.digest import folder_digests
from pdctl_transfer.layout.manifest import Model
from pdctl_transfer.rules.pair import CORE_CONNECTOR, TRANSFER_MODES

#: vLLM's roles by pdctl's names.
KV_ROLES: Final[Mapping[str, str]] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}

#: The connector by the way that its worker moves pages, where another one wraps it.
BY_MODE: Final[Mapping[str, str]] = {"pull": "NixlConnector", "push": "NixlPushConnector"}


def model(name: str, family: str | None, folder: str, overrides: object = None) -> Model:
    """The model served; without the digests where its config lies elsewhere, or is changed by a function."""
    if overrides is not None and not isinstance(overrides, Mapping):
        return Model(name, family)
    geometry, values = folder_digests(folder, overrides)
    return Model(name, family, geometry, UNSET if values is None else values)


def of_vllm(config: Any, worker: Any) -> dict[str, Any]:
    """From the engine's own config, after it resolved what it was given, and the connector's worker."""
    parallel, transfer = config.parallel_config, config.kv_transfer_config
    named, mode = str(transfer.kv_connector), str(getattr(worker, "_TRANSFER_MODE", None))
    found: dict[str, Any] = {
        "dtype": _word(config.model_config.dtype),
        "kv_role": KV_ROLES.get(str(transfer.kv_role)),
        "connector": named
        if named in TRANSFER_MODES
        else BY_MODE.get(mode, named if named == CORE_CONNECTOR else None),
        "attention_backend": getattr(worker, "backend_name", None),
        "hybrid_manager": not config.scheduler_config.disable_hybrid_kv_cache_manager,
        "dcp": _size(parallel, "decode_context_parallel_size"),
        "pcp": _size(parallel, "prefill_context_parallel_size"),
        "compat_hash": None if getattr(worker, "enforce_compat_hash", True) else "off",
    }
    return {name: value for name, value in found.items() if value is not None}


def of_sglang(arguments: Any, role: str, dtype: object) -> dict[str, Any]:
    """From the arguments that the engine resolved, and the type that it loaded the model in."""
    found = {"dtype": _word(dtype), "kv_role": role, "dcp": _size(arguments, "dcp_size")}
    return {name: value for name, value in found.items() if value is not None}


def _word(dtype: object) -> str | None:
    """`torch.bfloat16` → `bfloat16`."""
    return str(dtype).removeprefix("torch.") if dtype is not None else None


def _size(holder: Any, name: str) -> int | None:
    """A size above 1; a side that does not shard states nothing."""
    size = getattr(holder, name, None)
    return size if isinstance(size, int) and size > 1 else None
