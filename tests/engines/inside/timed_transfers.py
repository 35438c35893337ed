"""How long transfers of an engine under test take, whichever way they go: a line each in the file named by TEST_TIMES.

    WAY FIRST LAST

Seconds until it was over, from when the engine handed over its first piece, and its last. Over is, for SGLang's own
path, when prefill has written all and told decode so; for the core, when decode has confirmed all, which is later. On
vLLM both are one figure, of decode: from when blocks were given to the request until they are said to have come.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

STARTED: dict[Any, tuple[float, float]] = {}


def handed_over(request: Any) -> None:
    """A piece of this request."""
    now = time.perf_counter()
    STARTED[request] = STARTED[request][0] if request in STARTED else now, now


def over(request: Any, way: str) -> None:
    """It has ended well."""
    if request in STARTED:
        now, (first, last) = time.perf_counter(), STARTED.pop(request)
        with Path(os.environ["TEST_TIMES"]).open("a") as file:  # one write of a short line: processes do not mix theirs
            file.write(f"{way} {now - first:.6f} {now - last:.6f}\n")


def before(owner: Any, method: str, what: Callable[..., None]) -> None:
    """Call `what` with a method's arguments first."""
    known = getattr(owner, method)

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        what(self, *args, **kwargs)
        return known(self, *args, **kwargs)

    setattr(owner, method, called)


def sglang_pieces(module: ModuleType) -> None:
    before(
        module.MooncakeKVManager,
        "add_transfer_request",
        lambda self, bootstrap_room, *_, **__: handed_over(bootstrap_room),
    )


def sglang_ends(module: ModuleType) -> None:
    def status(_: Any, bootstrap_room: int, status: int) -> None:
        if status == module.KVPoll.Success:
            over(bootstrap_room, "engine")

    before(module.CommonKVManager, "update_status", status)


def core(module: ModuleType) -> None:
    """Both ends of a room, on the side that sends."""
    owner = module.PrefillPeer
    known = owner.open

    def opened(self: Any, room: int, *args: Any, **kwargs: Any) -> Any:
        handle = known(self, room, *args, **kwargs)
        send, key = handle.send, ("core", room)

        def sending(*sent: Any, **said: Any) -> None:
            handed_over(key)
            send(*sent, **said)

        handle.send = sending
        handle.when_over(lambda: over(key, "core") if handle.state == "confirmed" else STARTED.pop(key, None))
        return handle

    owner.open = opened


def vllm(module: ModuleType) -> None:
    owner = module.Scheduler
    known = owner.__init__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        known(self, *args, **kwargs)
        if self.connector is not None:
            after_alloc = self.connector.update_state_after_alloc

            def allocated(request: Any, blocks: Any, count: int, *more: Any) -> Any:
                if count > 0:
                    handed_over(request.request_id)
                return after_alloc(request, blocks, count, *more)

            self.connector.update_state_after_alloc = allocated

    def came(self: Any, output: Any) -> None:
        for request in output.finished_recving or ():
            over(request, type(self.connector).__name__)

    owner.__init__ = made
    before(owner, "_update_from_kv_xfer_finished", came)


AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "sglang.srt.disaggregation.mooncake.conn": sglang_pieces,
    "sglang.srt.disaggregation.common.conn": sglang_ends,
    "pdctl_transfer.session.prefill": core,
    "vllm.v1.core.sched.scheduler": vllm,
}
