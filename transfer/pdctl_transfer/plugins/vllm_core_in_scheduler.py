"""What vLLM's scheduler asks of `PdctlConnector`, handed on to the core's half there and to NIXL's connector."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pdctl_transfer.plugins.vllm_core_engine import EngineWay
from pdctl_transfer.plugins.vllm_core_scheduler import CoreScheduler, Orders, room_of
from pdctl_transfer.plugins.vllm_state import Way

log = logging.getLogger("vllm.pdctl")


class Said(NamedTuple):
    """From a worker to the scheduler's half, once at the start. fault: why its core moves nothing; engine: what the
    engine's own connector says."""

    fault: str
    engine: Any


class InScheduler:
    """The methods that are called in the scheduler's process. Each request goes one way, the core's where prefill
    offers a room."""

    _engine: EngineWay
    _core: CoreScheduler | None
    _caches: Any
    _fault: str
    _ways: list[Way]

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All that are transferred: a group left out would be zeroed while it is written."""
        return tuple(self._caches.transfer_group_ids)

    def on_new_request(self, request: Any) -> None:
        """A request has arrived."""
        if self._core is not None:
            self._core.arrived(request)
        if not self._by_core(request):
            self._engine.connector.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens come from prefill, beyond those that are here."""
        if self._core is not None and self._by_core(request):
            count = self._core.tokens_of(request) - num_computed_tokens
            return (count, True) if count > 0 else (0, False)
        found: tuple[int | None, bool] = self._engine.connector.get_num_new_matched_tokens(request, num_computed_tokens)
        return found

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request has its blocks."""
        if self._core is not None and self._by_core(request):
            self._core.allocated(request, blocks.get_block_ids(), num_external_tokens)
            return
        if num_external_tokens > 0:
            self._ways.append(self._by_engine(request))
        self._engine.connector.update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Orders:
        """What the workers are to do in this step."""
        orders = self._core.orders() if self._core is not None else Orders()
        orders.ways += self._ways
        self._ways = []
        orders.engine = self._engine.connector.build_connector_meta(scheduler_output)
        return orders

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """As below, of an engine with one group."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks are kept, and what decode is told."""
        params = request.kv_transfer_params
        if not params:
            return False, None
        if self._core is not None and not params.get("do_remote_decode"):
            self._core.ended(request)
        keep, told = self._engine.connector.request_finished_all_groups(request, block_ids)
        if self._core is None or not params.get("do_remote_decode"):
            return keep, told
        room = self._core.prefilled(request, block_ids, keep)
        if room is None:
            return keep, told
        return True, {"do_remote_prefill": True, "do_remote_decode": False, **(told or {}), **room}

    def update_connector_output(self, connector_output: Any) -> None:
        """What all workers have said is over."""
        if self._core is not None:
            sent, received = connector_output.finished_sending, connector_output.finished_recving
            self._core.done(set(sent or ()), set(received or ()))
        self._engine.connector.update_connector_output(connector_output)

    def has_pending_push_work(self) -> bool:
        """True keeps the engine stepping, so that it hears of a confirmation before its next request comes."""
        pending = self._core is not None and self._core.sending
        return pending or bool(self._engine.connector.has_pending_push_work())

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Said]) -> None:
        """What the workers said at their start."""
        faults = sorted({said.fault for said in metadata.values() if said.fault})
        if faults and self._core is not None:
            self._fault = "; ".join(faults)
            log.error("pdctl: the core moves nothing here, NIXL does: %s", self._fault)
            self._core = None
        theirs = {rank: said.engine for rank, said in metadata.items() if said.engine is not None}
        if theirs:
            self._engine.connector.set_xfer_handshake_metadata_pp_aware(theirs)

    def _by_core(self, request: Any) -> bool:
        return self._core is not None and room_of(request.kv_transfer_params) is not None

    def _by_engine(self, request: Any) -> Way:
        """Why decode takes a request by the engine's own connector."""
        params = request.kv_transfer_params
        peer = f"{params.get('remote_host')}:{params.get('remote_port')}"
        if self._core is None:
            code, _, reason = self._fault.partition(": ")
            return Way(peer, "engine", code, reason)
        return Way(peer, "engine", "PD3149", "prefill offers no room of the core's")
