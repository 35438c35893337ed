"""Putting the core into a rank of SGLang once its manager stands, or saying why not."""

import logging
import math
import time
from typing import Any, Final

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins import peer, sglang_registry, sglang_state
from pdctl_transfer.plugins.core import wanted
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.peer import Refusal, Unanswered
from pdctl_transfer.plugins.sglang_core import classes
from pdctl_transfer.plugins.sglang_ways import Way

log = logging.getLogger("pdctl")

ANY: Final = "*"
"""On prefill: whoever asks."""

WHOLE_S: Final = 60.0
"""How long the other pipeline stages of a prefill engine may take to show their layout."""


@guarded(None)
def install(manager: Any, queue: Any, address: str) -> None:
    """Attach a core where one is wanted and can be. `address`: the engine's bootstrap server, of a prefill rank."""
    state = sglang_state.state
    if wanted() == "engine" or state.manifest is None:
        return
    state.obstacle = why = _attached(manager, queue, state.manifest, address)
    state.core = getattr(getattr(manager, "core", None), "telemetry", None)
    if why is None:
        if state.manifest.role == "prefill":
            state.ways.keep(Way(ANY, "core", "PD3144", "decode engines choose; the engine's own way is open, too"))
        return
    log.warning("pdctl plugin: %s: this rank keeps the engine's own path: %s", why.code, why.text)
    if state.manifest.role == "prefill":
        state.ways.keep(Way(ANY, "engine", why.code, why.text))
        sglang_registry.report(address, why)


def _attached(manager: Any, queue: Any, own: Manifest, address: str) -> Refusal | None:
    """None where a core was attached, else why not."""
    backend = own.transfer.backend
    made = classes(backend)
    if isinstance(made, Refusal):
        return made
    if not isinstance(manager, made.manager):
        return Refusal("PD3134", f"the engine's manager is a {type(manager).__name__}")
    from pdctl_transfer.plugins import sglang_attach

    why = sglang_attach.obstacle(manager, queue, own.role, backend)
    if why is not None:
        return why
    try:
        whole = own if own.parallel.pp == 1 else _whole(address)
        sglang_attach.attach(manager, queue, whole, sglang_state.state.ways, address)
    except TransferError as fault:
        return Refusal(fault.code, fault.message)
    except Exception as defect:  # the outermost edge: the engine has its own path
        log.exception("pdctl plugin: PD3134: no core in this rank")
        return Refusal("PD3134", f"{type(defect).__name__}: {defect}")
    return None


def _whole(address: str) -> Manifest:
    """All stages of this engine. TransferError PD3134 where one does not come."""
    ends = time.monotonic() + WHOLE_S
    while True:
        try:
            found = peer.fetch(address)
            if found is not None:
                return found
            why = "it has no route for it"
        except Unanswered as failure:
            why = str(failure)
        if time.monotonic() > ends:
            raise TransferError(f"no whole layout at the bootstrap server at {address}: {why}", code="PD3134")
        time.sleep(0.2)


@guarded(None)
def hold(_: None, queue: Any, decode_req: Any) -> None:
    """After SGLang has put a failed request's pages aside: where the core wrote them they come back by proof alone.

    The engine itself would take them back after 30 s, whoever still writes.
    """
    if getattr(decode_req.kv_receiver, "handle", None) is None:
        return
    held = queue._deferred_releases[-1]
    if held[0] is decode_req:
        queue._deferred_releases[-1] = (*held[:2], math.inf, *held[3:])
