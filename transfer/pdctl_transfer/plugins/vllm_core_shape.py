"""What `PdctlConnector` takes for granted of the installed vLLM, as data that is looked at before anything starts.

vLLM calls its connector interface experimental. Where a release has another shape, its own connector does the work and
PD3146 says what is other; nothing of ours is then called by it.
"""

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final

V1: Final = "vllm.distributed.kv_transfer.kv_connector.v1"
BASE: Final = f"{V1}.base"
NIXL: Final = f"{V1}.nixl"
FACTORY: Final = "vllm.distributed.kv_transfer.kv_connector.factory"
HITS: Final = "vllm.v1.metrics.cache_hit_source"

NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    BASE: ("KVConnectorBase_V1", "SupportsHMA", "KVConnectorRole", "KVConnectorTransferResults"),
    FACTORY: ("KVConnectorFactory",),
    "vllm.distributed.parallel_state": ("get_tensor_model_parallel_rank",),
    HITS: ("CacheHitSource",),
    f"{NIXL}.pull_worker": ("NixlPullConnectorWorker",),
}

METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "__init__": ("vllm_config", "role", "kv_cache_config"),
    "bind_connector_metadata": ("connector_metadata",),
    "clear_connector_metadata": (),
    "register_kv_caches": ("kv_caches",),
    "set_host_xfer_buffer_ops": ("copy_operation",),
    "handle_preemptions": ("kv_connector_metadata",),
    "start_load_kv": ("forward_context", "kwargs"),
    "wait_for_layer_load": ("layer_name",),
    "save_kv_layer": ("layer_name", "kv_layer", "attn_metadata", "kwargs"),
    "wait_for_save": (),
    "get_transfer_results": ("finished_req_ids",),
    "get_block_ids_with_load_errors": (),
    "get_kv_connector_stats": (),
    "get_handshake_metadata": (),
    "set_xfer_handshake_metadata_pp_aware": ("metadata",),
    "get_loaded_kv_cache_group_ids": ("request",),
    "get_num_new_matched_tokens": ("request", "num_computed_tokens"),
    "update_state_after_alloc": ("request", "blocks", "num_external_tokens"),
    "build_connector_meta": ("scheduler_output",),
    "on_new_request": ("request",),
    "update_connector_output": ("connector_output",),
    "request_finished": ("request", "block_ids"),
    "has_pending_push_work": (),
    "get_required_kvcache_layout": ("vllm_config",),
    "build_kv_connector_stats": ("data",),
    "build_prom_metrics": ("vllm_config", "metric_types", "labelnames", "per_engine_labelvalues"),
    "shutdown": (),
}
"""Of `KVConnectorBase_V1`, with their arguments after the first."""

RESULTS: Final = ("finished_sending", "finished_recving", "failed_recving")
ABSTRACT: Final = frozenset(
    {
        "start_load_kv",
        "wait_for_layer_load",
        "save_kv_layer",
        "wait_for_save",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
        "request_finished_all_groups",
    }
)
"""All that a connector must have; one more would be a duty that ours does not know."""


def deviation() -> str:
    """What is other in the installed vLLM than was probed; empty where it has the shape."""
    return next(_deviations(), "")


def _deviations() -> Iterator[str]:
    modules = {}
    for module, names in NAMES.items():
        try:
            modules[module] = import_module(module)
        except ImportError as failure:
            yield f"{module}: {failure}"
            return
        for name in names:
            if not hasattr(modules[module], name):
                yield f"{module} has no {name}"
                return
    base = modules[BASE]
    connector, hma = base.KVConnectorBase_V1, base.SupportsHMA
    for method, expected in METHODS.items():
        seen = _arguments(connector, method)
        if seen != expected:
            found = "is not there" if seen is None else f"takes {', '.join(seen) or 'nothing'}"
            yield f"KVConnectorBase_V1.{method} {found}"
    more = (connector.__abstractmethods__ | hma.__abstractmethods__) - ABSTRACT
    if more:
        yield f"a connector must have {', '.join(sorted(more))} as well"
    fields = tuple(getattr(base.KVConnectorTransferResults, "__dataclass_fields__", {}))
    if fields != RESULTS:
        yield f"KVConnectorTransferResults has {', '.join(fields)}"


def _arguments(owner: Any, name: str) -> tuple[str, ...] | None:
    method = getattr(owner, name, None)
    if not callable(method):
        return None
    names = list(inspect.signature(method).parameters)
    return tuple(names if inspect.ismethod(method) else names[1:])
