"""Light stand-ins for SGLang's manager, sender and receiver, and for the core's handles. The real: tests/engines."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from pdctl_transfer.plugins.sglang_manager import CoreRank, Held, Manager
from pdctl_transfer.plugins.sglang_receiver import Receiver
from pdctl_transfer.plugins.sglang_sender import Sender
from pdctl_transfer.plugins.sglang_table import POLLS
from pdctl_transfer.plugins.sglang_threads import Behind
from pdctl_transfer.plugins.sglang_ways import Offer, Way, Ways
from pdctl_transfer.session.failure import Failure

ROOM, ADDRESS = 7, "127.0.0.1:9"
PAGE = 4
BY_CORE = Way(ADDRESS, "core", "PD3138", "told")


class Handle:
    """A room of the core's, moved by the test."""

    def __init__(self) -> None:
        self.state = "bootstrapping"
        self.failure: Failure | None = None
        self.reusable = False
        self.metadata = b""
        self.skip: dict[str, int] = {}
        self.sent: list[tuple[dict[str, list[int]], bytes, bool, dict[str, int]]] = []
        self.ended: list[str] = []

    def send(self, ids: Any, metadata: bytes = b"", *, last: bool = True, skipped: Any = None) -> None:
        self.sent.append(
            ({kind: list(map(int, one)) for kind, one in ids.items()}, metadata, last, dict(skipped or {}))
        )

    def abort(self, reason: str) -> None:
        self.ended.append(reason)

    def withdraw(self, reason: str) -> None:
        self.ended.append(f"withdrawn: {reason}")

    def fail(self, code: str, cause: str = "it broke") -> None:
        self.state, self.failure = "failed", Failure(code, cause, "decode")


class Rows:
    """Metadata rows that only say their index."""

    def __init__(self) -> None:
        self.written: dict[int, bytes] = {}

    def pack(self, index: int) -> bytes:
        return b"row%d" % index

    def unpack(self, index: int, packed: bytes) -> None:
        self.written[index] = packed


class Core(CoreRank):
    """A rank whose peer is the test."""

    def __init__(self) -> None:
        self.handle = Handle()
        self.page_size, self.rows, self.held, self.behind = PAGE, Rows(), Held(), Behind()  # type: ignore[assignment]
        self._kinds = ("kv", "mamba")
        self.watch = None
        self.asked: list[tuple[int, Any, dict[str, list[int]], int]] = []

    def expect(self, room: int) -> Any:
        return self.handle

    def ask(self, room: int, registry: Any, ids: Any, prefix: int) -> Any:
        self.asked.append((room, registry, {kind: list(map(int, one)) for kind, one in ids.items()}, prefix))
        self.held.hold(room, self.handle)  # type: ignore[arg-type]
        return self.handle


class EngineManager:
    """What SGLang's manager does with statuses."""

    def __init__(self) -> None:
        self.request_status: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.done: list[str] = []
        self.enable_deferred_decode_kv_release = True

    def update_status(self, room: int, status: int) -> None:
        now = self.request_status.get(room)
        if now is None and status not in (POLLS["Bootstrapping"], POLLS["WaitingForInput"]):
            return
        self.request_status[room] = status if not status or now is None else 0 if now == 0 else max(now, status)

    def record_failure(self, room: int, reason: str) -> None:
        self.reasons[room] = reason

    def prepare_send_state_indices(self, states: Any) -> Any:
        return states

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        self.done.append("acks counted")
        return required_acks == 0

    def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
        self.done.append("cleared")

    def _handle_node_failure(self, failed_bootstrap_addr: str) -> None:
        self.done.append("node failed")

    def register_buffer_to_engine(self) -> None:
        self.done.append("registered")

    def deregister_buffer_to_engine(self) -> None:
        self.done.append("deregistered")


class End:
    """What SGLang's senders and receivers share."""

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, *_: Any) -> None:
        self.kv_mgr, self.bootstrap_addr, self.bootstrap_room = mgr, bootstrap_addr, bootstrap_room
        self.conclude_state: int | None = None
        self.calls: list[str] = []
        mgr.update_status(bootstrap_room, POLLS["Bootstrapping"])

    def poll(self) -> int:
        if self.conclude_state is not None:
            return self.conclude_state
        status = int(self.kv_mgr.request_status.get(self.bootstrap_room, 0))
        if status in (POLLS["Success"], POLLS["Failed"]):
            self.conclude_state = status
        return status

    poll_pp_consensus = poll

    def abort(self) -> None:
        self.kv_mgr.update_status(self.bootstrap_room, POLLS["Failed"])
        self.conclude_state = POLLS["Failed"]

    def clear(self) -> None:
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)


class EngineSender(End):
    """SGLang's sender."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.aux_index, self.left, self.recorded = 3, 0, 0
        self._transfer_start_time: float | None = None
        self._transfer_metric = SimpleNamespace(transfer_latency_s=None)
        self._early_send_wait_event: Any = None

    def init(self, pages: int) -> None:
        self.left = pages

    def send(self, *_: Any) -> None:
        self.calls.append("send")

    def pop_decode_prefix_len(self) -> int:
        return -1

    def get_max_transfer_tokens(self) -> int | None:
        return -1

    def _prepare_send_indices(self, pages: Any, states: Any = None) -> Any:
        self.left -= len(pages)
        return pages, slice(0, 0), self.left == 0, False

    def _record_transfer_indices(self, pages: Any, states: Any) -> None:
        self.recorded += len(pages)


class EngineReceiver(End):
    """SGLang's receiver."""

    abort_notified = False

    def init(self, prefill_dp_rank: int) -> None:
        self.calls.append("init")
        self.kv_mgr.update_status(self.bootstrap_room, POLLS["WaitingForInput"])

    def send_metadata(self, *_: Any, **__: Any) -> None:
        self.calls.append("send_metadata")

    def abort(self) -> None:
        super().abort()
        self.ensure_abort_notified()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        self.calls.append("told")
        self.abort_notified = True


OurManager: Any = type("OurManager", (Manager, EngineManager), {})
OurSender: Any = type("OurSender", (Sender, EngineSender), {})
OurReceiver: Any = type("OurReceiver", (Receiver, EngineReceiver), {})


def manager(*, core: bool = True, way: Way = BY_CORE) -> Any:
    """One rank, with the pair's way chosen."""
    made = OurManager()
    made.ways = Ways()
    made.ways.keep(way, Offer("ready", "127.0.0.1", 5))
    made.core = Core() if core else None
    return made


def sender(*, core: bool = True) -> Any:
    """A request that has arrived on prefill."""
    return OurSender(manager(core=core), ADDRESS, ROOM, False)


def receiver(*, core: bool = True, way: Way = BY_CORE) -> Any:
    """A request that has arrived on decode."""
    made = OurReceiver(manager(core=core, way=way), ADDRESS, ROOM)
    made.init(0)
    return made


def ids(*values: int) -> Any:
    """As SGLang gives them."""
    return np.array(values, dtype=np.int32)
