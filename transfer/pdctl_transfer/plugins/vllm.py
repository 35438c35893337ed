"""The plugin inside vLLM: entry point `pdctl` in group `vllm.general_plugins`, called in every process of the engine.

vLLM has no registry of hooks, so methods of its connectors are wrapped, once the connector's class is asked for: see
`vllm_nixl` and `vllm_mooncake`. Common to both, here: when a worker has registered its caches, the live manifest is
built from them; `vllm_http` shows it, and what was moved, on the engine's HTTP port.
"""

from typing import Any, Final

from msgspec import Raw, json

from pdctl_transfer.layout.manifest import Parallel, Role
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins import stated, vllm_http, vllm_mooncake, vllm_nixl, wrap
from pdctl_transfer.plugins.guard import enabled, guarded
from pdctl_transfer.plugins.versions import backend_version
from pdctl_transfer.plugins.vllm_layout import Side, layout_name, manifest
from pdctl_transfer.plugins.vllm_state import EVENTS, state
from pdctl_transfer.telemetry import Telemetry

#: Where each connector's class is, and what hooks it.
_CONNECTORS: Final = {
    f"{vllm_nixl.MODULE}.connector": vllm_nixl.hook,
    f"{vllm_mooncake.MODULE}.mooncake_connector": vllm_mooncake.hook,
}

OURS: Final = "PdctlConnector"
NIXLS: Final = "NixlConnector"


def register() -> None:
    """Called by vLLM at the start of each process, possibly more than once."""
    if enabled():
        _wrap_factory()
        _wrap_names()
        vllm_http.install(report)


@guarded(None)
def _wrap_factory() -> None:
    """The connectors' modules need NIXL or Mooncake; they are touched only where vLLM itself has just imported them."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    known = KVConnectorFactory.get_connector_class

    def get_connector_class(config: Any) -> Any:
        found = known(config)
        wrap_connector(found)
        return found

    if not getattr(known, "_pdctl", False):
        get_connector_class._pdctl = True  # type: ignore[attr-defined]
        KVConnectorFactory.get_connector_class = staticmethod(get_connector_class)


@guarded(None)
def _wrap_names() -> None:
    """Ours holds NIXL's connector, so whatever vLLM prepares for that one, asking by its name, it prepares for ours."""
    from vllm.config.kv_transfer import KVTransferConfig

    def has_connector(original: Any, config: Any, name: str) -> bool:
        ours = config.kv_connector == OURS and name == NIXLS
        return ours or bool(original(config, name))

    wrap.instead(KVTransferConfig, "has_connector", has_connector)


@guarded(None)
def wrap_connector(connector: type) -> None:
    """By the modules of its bases, so that an operator's own subclass is hooked as well."""
    for base in connector.__mro__:
        if base.__module__ in _CONNECTORS:
            _CONNECTORS[base.__module__](export)


@guarded(None)
def export(worker: Any) -> None:
    """Build the manifest of what this worker has registered."""
    backend = "mooncake" if type(worker).__module__.startswith(vllm_mooncake.MODULE) else "nixl"
    side = side_of(worker, backend)
    state.telemetry = Telemetry(side.role, f"pp{side.pp_rank}tp{worker.tp_rank}", EVENTS)
    state.manifest = manifest(worker.kv_cache_config.kv_cache_groups, side)


def side_of(worker: Any, backend: str) -> Side:
    """What the engine of a connector's worker knows beside its caches: of its `vllm_config` and `use_mla`."""
    config = worker.vllm_config
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    names = model.served_model_name
    name = str(names[0] if isinstance(names, list) else names).rstrip("/").rsplit("/", 1)[-1]
    text = model.hf_text_config.to_dict()
    role: Role = "decode" if str(config.kv_transfer_config.kv_role) == "kv_consumer" else "prefill"
    return Side(
        role=role,
        version=_version(),
        model=stated.model(name, text.get("model_type"), str(model.model), getattr(model, "hf_overrides", None)),
        backend=backend,
        backend_version=backend_version(backend),
        parallel=Parallel(
            attn_tp=parallel.tensor_parallel_size,
            pp=parallel.pipeline_parallel_size,
            dp=parallel.data_parallel_size,
        ),
        pp_rank=_pp_rank() if parallel.pipeline_parallel_size > 1 else 0,
        layers=tuple(model.get_layers_start_end_indices(parallel)),
        kv_heads=model.get_total_num_kv_heads(),
        page_size=cache.block_size,
        kv_cache_dtype=str(cache.cache_dtype),
        kv_layout=None if worker.use_mla else layout_name(cache.get_resolved_kv_cache_layout().name),
        config=text,
        settings=stated.of_vllm(config, worker),
    )


def tp_rank() -> int:
    """This worker's rank in its tensor parallel group."""
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())


def _pp_rank() -> int:
    from vllm.distributed import get_pp_group

    return int(get_pp_group().rank_in_group)


def _version() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]


@guarded('{"events":[],"ways":[]}')
def report(_: Any, after: int = 0) -> str:
    """What this worker's process knows, for `vllm_http`."""
    layout = None if state.manifest is None else Raw(encode_manifest(state.manifest))
    ways = list(state.ways.values())
    return json.encode({"layout": layout, "events": state.telemetry.events(after), "ways": ways}).decode()
