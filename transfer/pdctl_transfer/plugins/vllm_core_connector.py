"""`PdctlConnector` without its bases: what vLLM calls, handed on to the core's half and to NIXL's connector.

Each request goes one way. A producer offers both, and its worker reports the blocks once, by whichever way they were
taken. Decode takes the core's way where prefill offers a room and its own core is well, NIXL's otherwise.
"""

import logging
from types import SimpleNamespace
from typing import Any, Final

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins.vllm_core_engine import EngineWay, kind
from pdctl_transfer.plugins.vllm_core_ids import Kind, kinds
from pdctl_transfer.plugins.vllm_core_in_scheduler import InScheduler
from pdctl_transfer.plugins.vllm_core_in_worker import InWorker
from pdctl_transfer.plugins.vllm_core_scheduler import CoreScheduler
from pdctl_transfer.plugins.vllm_core_settings import settings
from pdctl_transfer.plugins.vllm_core_stats import Prom, Stats
from pdctl_transfer.plugins.vllm_core_worker import CoreWorker
from pdctl_transfer.session import Rank, Registry

log = logging.getLogger("vllm.pdctl")

ROLES: Final = ("kv_producer", "kv_consumer")


class Connector(InScheduler, InWorker):
    """The methods of `KVConnectorBase_V1` that move state. Its bases are vLLM's, put beside it by `vllm_core`."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        transfer = vllm_config.kv_transfer_config
        self._config, self._caches = vllm_config, kv_cache_config
        self._settings = settings(transfer.kv_connector_extra_config)
        self._producer = transfer.kv_role == ROLES[0]
        wanted = (vllm_config, role, kv_cache_config) if self._settings.fallback else None
        self._engine = EngineWay(wanted)
        self._core: CoreScheduler | None = None
        self._worker: CoreWorker | None = None
        self._registry: Registry | None = None
        self._fault = ""
        self._ways = []
        try:
            understood = _kinds(vllm_config, kv_cache_config)
            if role.name == "SCHEDULER":
                self._core = self._schedule(understood)
            else:
                self._worker = self._work(understood)
        except TransferError as fault:
            self._without(fault)

    def _schedule(self, understood: tuple[Kind, ...]) -> CoreScheduler:
        """The scheduler's half; prefill's has the registry."""
        given, parallel = self._settings, self._config.parallel_config
        where = None
        if self._producer:
            port = given.registry_port and given.registry_port + int(parallel.data_parallel_index)
            self._registry = Registry(given.registry_host, port, given.options().secret)
            where = (given.told, self._registry.port)
        recurrent = any(kind.recurrent for kind in understood)
        backoff = max(int(recurrent), int(getattr(self._config, "num_prefill_lookahead_tokens", 1)) - 1)
        return CoreScheduler(understood, self._caches.select_transfer_block_ids, backoff, where)

    def _work(self, understood: tuple[Kind, ...]) -> CoreWorker:
        """A worker's half."""
        rank = Rank(0, plugin.tp_rank())
        whole = SimpleNamespace(
            vllm_config=self._config,
            kv_cache_config=self._caches,
            use_mla=self._config.model_config.use_mla,
            tp_rank=rank.tp,
        )
        return CoreWorker(self._settings, understood, rank, whole, self._engine.drop)

    def _without(self, fault: TransferError) -> None:
        """The core moves nothing here: the engine's own connector does, or the engine does not start."""
        if not self._engine.open:
            raise fault
        self._fault = f"{fault.code}: {fault.message}"
        log.error("pdctl: %s: the core moves nothing here, NIXL does: %s", fault.code, fault.message)

    # ---- what vLLM asks of the class ----

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Heads before tokens within a block: a head of a block is one piece at any TP."""
        model = vllm_config.model_config
        return None if model is None or model.use_mla else "LBHNC"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        """See `Stats`."""
        return Stats(data, kind())

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> Prom:
        """The core's metrics, and those of the engine's own connector."""
        own = kind() if settings(vllm_config.kv_transfer_config.kv_connector_extra_config).fallback else None
        theirs = own and own.build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        return Prom(metric_types, labelnames, per_engine_labelvalues, theirs)

    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Whatever decode's cache holds of the attention, the recurrent state comes whole from prefill."""
        return True

    def shutdown(self) -> None:
        """The process ends."""
        if self._worker is not None:
            self._worker.close()
        if self._registry is not None:
            self._registry.close()
        self._engine.connector.shutdown()


def _kinds(config: Any, caches: Any) -> tuple[Kind, ...]:
    """What there is to move. TransferError PD3147 where the core does not know how."""
    parallel, role = config.parallel_config, config.kv_transfer_config.kv_role
    if role not in ROLES:
        raise TransferError(f"kv_role {role}: an engine prefills or decodes, one of {', '.join(ROLES)}", code="PD3147")
    for size in ("prefill_context_parallel_size", "decode_context_parallel_size", "pipeline_parallel_size"):
        if getattr(parallel, size, 1) > 1:
            raise TransferError(f"{size} is {getattr(parallel, size)}", code="PD3147")
    return kinds(caches.transfer_groups)
