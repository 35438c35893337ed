"""The wall around what the core does within a request of SGLang: a defect ends that request, and nothing else."""

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.sglang_table import POLLS
from pdctl_transfer.session.failure import State
from pdctl_transfer.session.life import Handle

log = logging.getLogger("pdctl")
P = ParamSpec("P")
R = TypeVar("R", bound="Request")

STATUS: Final[dict[State, int]] = {
    "bootstrapping": POLLS["Bootstrapping"],
    "waiting": POLLS["WaitingForInput"],
    "transferring": POLLS["Transferring"],
    "confirmed": POLLS["Success"],
    "withdrawn": POLLS["Failed"],
    "failed": POLLS["Failed"],
}
"""The core's states in SGLang's words, on prefill."""


class Request(Protocol):
    """One end of a request: a sender or a receiver of ours."""

    kv_mgr: Any
    bootstrap_room: int
    handle: Any


def contained(method: Callable[Concatenate[R, P], None]) -> Callable[Concatenate[R, P], None]:
    """What this method raises fails its request with a code; the engine goes on."""

    @functools.wraps(method)
    def run(self: R, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except TransferError as fault:
            fail(self, f"{fault.code}: {fault.message}")
        except Exception as defect:  # the outermost edge: the engine must live
            log.exception("pdctl plugin: PD3140: room %s failed by a defect", self.bootstrap_room)
            fail(self, f"PD3140: {type(defect).__name__}: {defect}")

    return run


def fail(request: Request, reason: str) -> None:
    """End a request in the engine and in the core. The first reason counts."""
    manager, room = request.kv_mgr, request.bootstrap_room
    if manager.request_status.get(room) not in (None, POLLS["Failed"]):
        manager.record_failure(room, reason)
        manager.update_status(room, POLLS["Failed"])
    handle: Handle | None = request.handle
    if handle is not None:
        handle.abort(reason)
