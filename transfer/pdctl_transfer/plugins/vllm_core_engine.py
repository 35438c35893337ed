"""vLLM's own NIXL connector beside the core: the way of every pair of which one side has no core.

It is called as vLLM calls it, with orders of its own. The one thing done behind its back is to let a producer's worker
forget a request that went by the core: it would keep the blocks until its lease ends.
"""

import logging
import time
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins.vllm_core_shape import BASE, NIXL

log = logging.getLogger("vllm.pdctl")

MODULE: Final = f"{NIXL}.connector"
CLASS: Final = "NixlConnector"
LEDGERS: Final = ("_reqs_to_send", "_reqs_to_process", "consumer_notification_counts_by_req")
"""Where its worker keeps the requests that decode may read, until when, and who has read them."""
PARAMS: Final = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""What decode needs to take a request by this way."""


@cache
def kind() -> Any:
    """The connector's class, with the plugin's hooks in it; None where it cannot be loaded, which PD3148 says."""
    try:
        found = getattr(import_module(MODULE), CLASS)
    except (ImportError, AttributeError) as failure:
        log.warning("pdctl: PD3148: no %s beside the core: %s", CLASS, failure)
        return None
    plugin.wrap_connector(found)
    return found


class EngineWay:
    """An instance of it, made with these arguments. Without arguments, or where it cannot be made, this way is closed:
    whatever is asked of it comes to nothing."""

    def __init__(self, arguments: tuple[Any, Any, Any] | None) -> None:
        self.connector: Any = Closed()
        self.open = False
        made = kind() if arguments is not None else None
        if made is None or arguments is None:
            return
        try:
            self.connector = made(*arguments)
            self.open = True
        except (RuntimeError, ValueError, NotImplementedError, OSError) as failure:
            log.warning("pdctl: PD3148: no %s beside the core: %s", CLASS, failure)

    @staticmethod
    def offered(params: Any) -> bool:
        """Whether prefill lets this request be read by NIXL."""
        return isinstance(params, Mapping) and all(params.get(name) is not None for name in PARAMS)

    def lapsed(self) -> set[str]:
        """Requests whose lease is over: its worker will say that they were sent, though nobody read them."""
        ledger, now = getattr(self._worker, LEDGERS[0], None), time.perf_counter()
        return {request for request, until in ledger.items() if now >= until} if isinstance(ledger, dict) else set()

    def drop(self, request: str) -> None:
        """Nobody will read this request by NIXL any more."""
        for name in LEDGERS:
            ledger = getattr(self._worker, name, None)
            if isinstance(ledger, dict):
                ledger.pop(request, None)
            elif isinstance(ledger, set):
                ledger.discard(request)

    @property
    def _worker(self) -> Any:
        return getattr(self.connector, "connector_worker", None)


class Closed:
    """A connector that does nothing, in the words of vLLM's interface."""

    def get_num_new_matched_tokens(self, *_: Any) -> tuple[int, bool]:
        """Nothing comes from elsewhere."""
        return 0, False

    def request_finished_all_groups(self, *_: Any) -> tuple[bool, None]:
        """No blocks are kept."""
        return False, None

    def get_transfer_results(self, _: Any) -> Any:
        """Nothing has ended."""
        return import_module(BASE).KVConnectorTransferResults()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """None."""
        return set()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Neither done nor known."""

    on_new_request = update_state_after_alloc = build_connector_meta = update_connector_output = _nothing
    has_pending_push_work = set_xfer_handshake_metadata_pp_aware = register_kv_caches = _nothing
    set_host_xfer_buffer_ops = get_handshake_metadata = bind_connector_metadata = clear_connector_metadata = _nothing
    handle_preemptions = start_load_kv = wait_for_save = get_kv_connector_stats = shutdown = _nothing
