"""The plugin's hooks in vLLM's NIXL connector, where decode reads from prefill.

- the worker's `add_remote_agent`, the handshake, before any byte: judge the prefill side. Unequal block sizes pass
  vLLM's own checks and give wrong output with HTTP 200;
- the scheduler's `request_finished` and `on_new_request`, the worker's `_read_blocks_for_req`: a lease that ran out
  between prefill and decode fails the request instead of reading what stands in the freed blocks by now; so does a
  model whose numbers are others (rotary base, scaling), which no hash compares;
- the wrapper's `get_xfer_telemetry`, the worker's `_log_failure`: events.
"""

import logging
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from pdctl_transfer.plugins import stated, wrap
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.judge import judge
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.vllm_layout import of_peer
from pdctl_transfer.plugins.vllm_state import state
from pdctl_transfer.telemetry import Tally

log = logging.getLogger("vllm.pdctl")

MODULE: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
EXPIRES: Final = "pdctl_blocks_expire_unix"
"""In the kv_transfer_params that travel from prefill through the router to decode: when the blocks are freed."""
VALUES: Final = "pdctl_values_digest"
"""There too: what the numbers in prefill's blocks depend on besides the geometry."""
_EXPIRED: Final = -1.0
"""In `remote_blocks_expiry_time`, from decode's scheduler to its worker: the lease had run out on arrival."""
_OTHER: Final = -2.0
"""There too: the two sides' numbers are not one model's."""
REASONS: Final = {
    _EXPIRED: "PD3112: its blocks had been freed",
    _OTHER: "PD1038: prefill's config has other values behind the same geometry",
}


def hook(export: Callable[..., Any]) -> None:
    """Wrap the connector's classes. `export(worker)` runs when a worker has registered its caches."""
    worker = import_module(f"{MODULE}.base_worker").NixlBaseConnectorWorker
    wrap.after(worker, "register_kv_caches", lambda one, _: (export(one), watch(one)))
    wrap.before(worker, "add_remote_agent", check_peer)
    wrap.before(worker, "_log_failure", note_failure)
    wrap.after(worker, "get_transfer_results", state.settle)
    pull_worker = import_module(f"{MODULE}.pull_worker").NixlPullConnectorWorker
    wrap.instead(pull_worker, "_read_blocks_for_req", refuse_expired)
    scheduler = import_module(f"{MODULE}.pull_scheduler").NixlPullConnectorScheduler
    wrap.instead(scheduler, "request_finished", add_expiry)
    wrap.before(scheduler, "on_new_request", note_expired)


# ---- the handshake ----


def check_peer(worker: Any, metadata: Any, remote_rank: int = 0, remote_tp_size: int = 1, *_: Any, **__: Any) -> None:
    """Raise where the peer does not fit: vLLM fails the requests that wait for this handshake, and goes on."""
    refusal = _verdict(metadata, remote_tp_size)
    if refusal is not None:
        log.error(
            "pdctl plugin: %s: the prefill engine %s is refused: %s", refusal.code, metadata.engine_id, refusal.text
        )
        raise RuntimeError(f"{refusal.code}: {refusal.text}")


@guarded(None)
def _verdict(metadata: Any, tp: int) -> Refusal | None:
    own = state.manifest
    if own is None or own.role != "decode":
        return None
    return judge(of_peer(metadata, own, tp), own)


# ---- the lease ----


def add_expiry(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Send the deadline of the blocks along with where they are."""
    held, params = original(scheduler, request, *args, **kwargs)
    _stamp(scheduler, request, params)
    return held, params


@guarded(None)
def _stamp(scheduler: Any, request: Any, params: Any) -> None:
    deadline = scheduler._reqs_need_send.get(request.request_id)
    if isinstance(params, dict) and deadline is not None:
        params[EXPIRES] = round(time.time() + deadline - time.perf_counter(), 3)
        if values := _values(scheduler):
            params[VALUES] = values


def _values(scheduler: Any) -> str | None:
    """The digest of this engine's model, read once: the scheduler may have a process of its own."""
    known: dict[str, str | None] = scheduler.__dict__.setdefault("_pdctl_values", {})
    if not known:
        model = scheduler.vllm_config.model_config
        found = stated.model("", None, str(model.model), getattr(model, "hf_overrides", None)).values_digest
        known["digest"] = found if isinstance(found, str) else None
    return known["digest"]


@guarded(None)
def note_expired(scheduler: Any, request: Any) -> None:
    """On arrival only: from here on vLLM's own heartbeats keep the lease."""
    params = request.kv_transfer_params
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return
    theirs, ours = params.get(VALUES), _values(scheduler)
    if isinstance(theirs, str) and ours is not None and theirs != ours:
        params["remote_blocks_expiry_time"] = _OTHER
        log.error("pdctl plugin: %s: request %s is refused", REASONS[_OTHER], request.request_id)
        return
    expires = params.get(EXPIRES)
    if isinstance(expires, int | float) and time.time() > expires:
        params["remote_blocks_expiry_time"] = _EXPIRED
        late = time.time() - expires
        log.error("pdctl plugin: PD3112: request %s came %.1f s after its blocks were freed", request.request_id, late)


def refuse_expired(original: Callable[..., Any], worker: Any, req_id: str, meta: Any) -> Any:
    """Fail the request as vLLM fails one whose transfer broke."""
    if (reason := _refused(meta)) is not None:
        state.failing[req_id] = reason
        if reason == REASONS[_EXPIRED]:
            worker.xfer_stats.record_kv_expired_req()
        return worker._handle_failed_transfer(req_id, None, worker._recv_failures, record_failed_transfer=False)
    return original(worker, req_id, meta)


@guarded(None)
def _refused(meta: Any) -> str | None:
    return None if meta.remote is None else REASONS.get(meta.remote.blocks_expiry_time)


# ---- events ----


@guarded(None)
def watch(worker: Any) -> None:
    """Look at NIXL's own figures of each read as vLLM takes them."""
    nixl = worker.nixl_wrapper
    known = nixl.get_xfer_telemetry

    def get_xfer_telemetry(handle: Any) -> Any:
        seen = known(handle)
        note_read(worker, handle, seen)
        return seen

    nixl.get_xfer_telemetry = get_xfer_telemetry


@guarded(None)
def note_read(worker: Any, handle: Any, seen: Any) -> None:
    """One read ended well; NIXL counts microseconds."""
    request = next((one for one, handles in worker._recving_transfers.items() if handle in handles), "")
    meta = worker._recving_metadata.get(request)
    peer = str(meta.remote.engine_id) if meta is not None and meta.remote is not None else ""
    moved = Tally(int(seen.descCount), int(seen.totalBytes))
    moved.seconds = float(seen.xferDuration) / 1e6
    state.telemetry.written(-1, peer, "all", "engine", moved, 0, request)


@guarded(None)
def note_failure(worker: Any, failure_type: str, req_id: str | None, *_: Any, **more: Any) -> None:
    """Keep why a request is going to fail; notices that cannot be sent fail none."""
    if req_id is not None and failure_type.startswith(("handshake", "transfer")):
        state.failing.setdefault(req_id, str(more.get("error") or failure_type))
