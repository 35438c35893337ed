"""What vLLM's workers ask of `PdctlConnector`, handed on to the core's half there and to NIXL's connector."""

from collections.abc import Mapping
from typing import Any

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.vllm_core_engine import EngineWay, kind
from pdctl_transfer.plugins.vllm_core_in_scheduler import Said
from pdctl_transfer.plugins.vllm_core_scheduler import Orders
from pdctl_transfer.plugins.vllm_core_stats import OF_CORE, OF_ENGINE, Stats
from pdctl_transfer.plugins.vllm_core_worker import CoreWorker
from pdctl_transfer.plugins.vllm_state import state


class InWorker:
    """The methods that are called in a worker's process. A request is reported once, by whichever way it went."""

    _engine: EngineWay
    _worker: CoreWorker | None
    _caches: Any
    _fault: str

    def _without(self, fault: TransferError) -> None:
        """See `Connector`."""
        raise NotImplementedError

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        """The caches are allocated, one tensor a layer."""
        self._engine.connector.register_kv_caches(kv_caches)
        if self._worker is not None:
            try:
                self._worker.register(kv_caches, self._caches.transfer_groups, self._caches.num_blocks)
            except TransferError as fault:
                self._worker = None
                self._without(fault)

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """For a NIXL that goes by host memory."""
        self._engine.connector.set_host_xfer_buffer_ops(copy_operation)

    def get_handshake_metadata(self) -> Said | None:
        """What the scheduler's half must know of this worker."""
        theirs = self._engine.connector.get_handshake_metadata()
        return Said(self._fault, theirs) if theirs is not None or self._fault else None

    def bind_connector_metadata(self, connector_metadata: Orders) -> None:
        """The orders of this step."""
        super().bind_connector_metadata(connector_metadata)  # type: ignore[misc]
        self._engine.connector.bind_connector_metadata(connector_metadata.engine)

    def clear_connector_metadata(self) -> None:
        """The step is over."""
        super().clear_connector_metadata()  # type: ignore[misc]
        self._engine.connector.clear_connector_metadata()

    def handle_preemptions(self, kv_connector_metadata: Orders) -> None:
        """Before blocks of preempted requests are written: nothing of a running request is under way by the core."""
        self._engine.connector.handle_preemptions(kv_connector_metadata.engine)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what the orders say."""
        orders: Orders = self._connector_metadata  # type: ignore[attr-defined]
        self._engine.connector.start_load_kv(forward_context, **kwargs)
        for way in orders.ways:
            state.went(way)
        if self._worker is not None:
            self._worker.follow(orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded layer by layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved layer by layer."""

    def wait_for_save(self) -> None:
        """For a NIXL that goes by host memory."""
        self._engine.connector.wait_for_save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Requests whose blocks are free again, each once, and those of them that failed."""
        lapsed = self._engine.lapsed()
        results = self._engine.connector.get_transfer_results(finished_req_ids)
        if self._worker is not None:
            ended = self._worker.ended(results.finished_sending, lapsed)
            results.finished_sending = ended.sent
            results.finished_recving |= ended.received
            results.failed_recving |= ended.failed
        return results

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Of NIXL's way; the core names requests that failed, never blocks."""
        return set(self._engine.connector.get_block_ids_with_load_errors())

    def get_kv_connector_stats(self) -> Stats | None:
        """A worker's figures since the last step."""
        data = {}
        if self._worker is not None and (taken := self._worker.counts.take()):
            data[OF_CORE] = taken
        theirs = self._engine.connector.get_kv_connector_stats()
        if theirs is not None and not theirs.is_empty():
            data[OF_ENGINE] = theirs.data
        return Stats(data, kind()) if data else None
