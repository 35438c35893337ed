"""The prefill side of one request: both ways are open until decode uses one of them.

SGLang asks for a request's status each loop and reduces it over its ranks; so what the core says of a room is written
into the engine's own table, and the engine's own methods tell of it. A room is told to transfer only after `send`: any
status above WaitingForInput before it would end the scheduler.
"""

import time
from typing import Any, Literal

from pdctl_transfer.plugins.sglang_bases import EngineSender
from pdctl_transfer.plugins.sglang_contain import STATUS, contained, fail
from pdctl_transfer.plugins.sglang_table import POLLS
from pdctl_transfer.session import SendHandle


class Sender(EngineSender):
    """SGLang's sender with a room of the core's beside it."""

    handle: SendHandle | None = None
    way: Literal["", "core", "engine"] = ""
    prefix = 0
    """Tokens that decode holds already, by the core's way."""

    def __init__(
        self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, req_has_disagg_prefill_dp_rank: bool = False
    ) -> None:
        super().__init__(mgr, bootstrap_addr, bootstrap_room, req_has_disagg_prefill_dp_rank)
        self._open()

    def poll(self) -> int:
        """The engine's answer, with what the core knows."""
        self._look()
        return super().poll()

    def poll_pp_consensus(self) -> int:
        """The same over pipeline stages."""
        self._look()
        return super().poll_pp_consensus()

    def pop_decode_prefix_len(self) -> int:
        """How many tokens decode holds already."""
        return self.prefix if self.way == "core" else super().pop_decode_prefix_len()

    def get_max_transfer_tokens(self) -> int | None:
        """The core takes an installment of any length."""
        return None if self.way == "core" else super().get_max_transfer_tokens()

    def send(
        self, kv_indices: Any, state_indices: Any = None, num_kv_tokens: Any = None, indices_event: Any = None
    ) -> None:
        """A chunk of the prompt, with the last also the state and the metadata row."""
        if self.way == "core":
            self._send(kv_indices, state_indices, indices_event)
        else:
            super().send(kv_indices, state_indices, num_kv_tokens, indices_event)

    def abort(self) -> None:
        """The engine gives the request up."""
        super().abort()
        self._give_up("AbortReq")

    def clear(self) -> None:
        """The engine forgets the request, perhaps before it has ended in the core."""
        super().clear()
        self._give_up("cleared by the engine")

    @contained
    def _open(self) -> None:
        core, room = self.kv_mgr.core, self.bootstrap_room
        if core is not None and self.kv_mgr.request_status.get(room) == POLLS["Bootstrapping"]:
            self.handle = core.expect(room)
            if core.watch is not None:
                core.watch.add(self._watched)

    def _watched(self) -> bool:
        """On a later pipeline stage, from a thread of ours."""
        self._look()
        over = self.conclude_state is not None or self.bootstrap_room not in self.kv_mgr.request_status
        return not over and self.way != "engine"

    @contained
    def _look(self) -> None:
        handle, room = self.handle, self.bootstrap_room
        if handle is None or self.way == "engine" or self.conclude_state is not None:
            return
        own = self.kv_mgr.request_status.get(room, POLLS["Failed"])
        if own == POLLS["Failed"]:
            handle.abort("failed in the engine")
            return
        if not self.way:
            self._choose(handle, own)
        if self.way != "core":
            return
        state = handle.state
        if STATUS[state] == POLLS["Failed"]:
            fail(self, str(handle.failure))
            return
        if state == "confirmed" and self._transfer_start_time is not None:
            self._transfer_metric.transfer_latency_s = time.perf_counter() - self._transfer_start_time
        self.kv_mgr.update_status(room, STATUS[state])

    def _choose(self, handle: SendHandle, own: int) -> None:
        """Whichever decode has used: its ids came to the engine's socket, or the core knows the room."""
        if own == POLLS["WaitingForInput"]:
            self.way = "engine"
            handle.withdraw("decode took the engine's own way")
        elif handle.state not in ("bootstrapping", "withdrawn"):
            self.prefix = handle.skip.get("kv", 0) * self.kv_mgr.core.page_size
            self.way = "core"  # last: another thread may read both

    @contained
    def _send(self, kv_indices: Any, state_indices: Any, indices_event: Any) -> None:
        handle, core = self.handle, self.kv_mgr.core
        if handle is None or self.conclude_state in (POLLS["Success"], POLLS["Failed"]):
            return
        pages, _, last, skip = self._prepare_send_indices(kv_indices, state_indices)
        if skip:
            return
        states = self.kv_mgr.prepare_send_state_indices(state_indices)
        if self._transfer_start_time is None:
            self._transfer_start_time = time.perf_counter()
        row = core.rows.pack(self.aux_index) if last else b""
        self._record_transfer_indices(pages, states)
        events = [event for event in (self._early_send_wait_event, indices_event) if event is not None]
        self._early_send_wait_event = None
        skipped = {"kv": self.prefix // core.page_size} if self.prefix else {}

        def deliver() -> None:
            for event in events:
                event.synchronize()
            if last:
                handle.send(core.ids(pages, states), row, skipped=skipped)
            else:
                handle.send(core.ids(pages, None), last=False, skipped=skipped)

        core.behind.call(lambda: self._deliver(deliver), waits=bool(events))

    @contained
    def _deliver(self, deliver: Any) -> None:
        deliver()

    @contained
    def _give_up(self, why: str) -> None:
        if self.handle is not None:
            self.handle.abort(why)
