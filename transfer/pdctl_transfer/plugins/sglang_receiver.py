"""The decode side of one request: by the core where the pair goes that way, else the engine's own."""

from contextlib import suppress
from typing import Any

from pdctl_transfer.plugins import sglang_registry
from pdctl_transfer.plugins.peer import Unanswered
from pdctl_transfer.plugins.sglang_bases import EngineReceiver
from pdctl_transfer.plugins.sglang_contain import STATUS, contained, fail
from pdctl_transfer.plugins.sglang_table import POLLS
from pdctl_transfer.session import ReceiveHandle


class Receiver(EngineReceiver):
    """SGLang's receiver. The way is known once it was told of its prefill engine (`init`)."""

    handle: ReceiveHandle | None = None
    registry: tuple[str, int] | None = None
    """Where the core finds prefill's ranks; None by the engine's way."""
    row = -1

    def init(self, prefill_dp_rank: int) -> None:
        """Prefill is known. The engine prepares its own way in any case: aborts before the first id travel by it."""
        self._find()
        super().init(prefill_dp_rank)

    def send_metadata(
        self,
        kv_indices: Any,
        aux_index: int | None = None,
        state_indices: Any = None,
        decode_prefix_len: int | None = None,
        *more: Any,
        **named: Any,
    ) -> None:
        """Decode has room for the request. What goes to host memory, or has ids of its own on the device, is not the
        core's."""
        plain = not more and str(getattr(named.get("destination", "device"), "value", "device")) == "device"
        if self.registry is None or not plain or named.get("device_kv_indices") is not None:
            self.registry = None
            super().send_metadata(kv_indices, aux_index, state_indices, decode_prefix_len, *more, **named)
        elif self.conclude_state != POLLS["Failed"]:
            self._ask(self.registry, kv_indices, aux_index, state_indices, decode_prefix_len or 0)

    def poll(self) -> int:
        """The engine's answer, with what the core knows."""
        self._look()
        return super().poll()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        """Prefill must hear that this has failed: over the core's link once it was asked there."""
        if self.handle is None:
            super().ensure_abort_notified(force_arm=force_arm)
        elif not self.abort_notified:
            self._give_up("AbortReq")
            self.abort_notified = True

    def clear(self) -> None:
        """The engine forgets the request; pages that may still be written stay held, unless it was told not to."""
        super().clear()
        if self.handle is not None:
            self._forget(self.handle)

    @contained
    def _find(self) -> None:
        ways = self.kv_mgr.ways
        if ways is not None:
            with suppress(Unanswered):
                ways.renew(self.bootstrap_addr, sglang_registry.fetch)
            self.registry = ways.registry(self.bootstrap_addr)

    @contained
    def _ask(self, registry: tuple[str, int], pages: Any, row: int | None, states: Any, prefix: int) -> None:
        core = self.kv_mgr.core
        self.row = -1 if row is None else int(row)
        self.handle = core.ask(self.bootstrap_room, registry, core.ids(pages, states), prefix)

    @contained
    def _look(self) -> None:
        handle, room = self.handle, self.bootstrap_room
        if handle is None or self.conclude_state is not None:
            return
        if self.kv_mgr.request_status.get(room, POLLS["Failed"]) == POLLS["Failed"]:
            handle.abort("failed in the engine")
            return
        status = STATUS[handle.state]
        if status == POLLS["Failed"]:
            self.kv_mgr.ways.doubt(self.bootstrap_addr, handle.failure)
            fail(self, str(handle.failure))
        elif status == POLLS["Success"]:
            self.kv_mgr.core.rows.unpack(self.row, handle.metadata)
            self.kv_mgr.update_status(room, status)
        else:
            self.kv_mgr.update_status(room, max(status, POLLS["WaitingForInput"]))

    @contained
    def _forget(self, handle: ReceiveHandle) -> None:
        if handle.state == "confirmed" or not self.kv_mgr.enable_deferred_decode_kv_release:
            self.kv_mgr.core.held.drop(self.bootstrap_room, handle)

    @contained
    def _give_up(self, why: str) -> None:
        if self.handle is not None:
            self.handle.abort(why)
