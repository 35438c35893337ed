"""The plugin inside vLLM: entry point `pdctl` in group `vllm.general_plugins`, called in every process of the engine.

vLLM has no registry of hooks, so methods of its NIXL connector are wrapped, once the connector is created:
- the worker's `register_kv_caches`: build the live manifest; it travels in the handshake payload on the side channel,
  under a key of its own that a peer without the plugin ignores;
- the worker's `add_remote_agent`, the handshake, before any byte: judge the prefill side. Unequal block sizes pass
  vLLM's own checks and give wrong output with HTTP 200;
- the scheduler's `request_finished` and `on_new_request`, the worker's `_read_blocks_for_req`: a lease that ran out
  between prefill and decode fails the request instead of reading what stands in the freed blocks by now.
"""

import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from pdctl_transfer.layout.digest import folder_digest
from pdctl_transfer.layout.manifest import Manifest, Model, Parallel, Role
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins.guard import enabled, guarded
from pdctl_transfer.plugins.judge import judge
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.versions import backend_version
from pdctl_transfer.plugins.vllm_layout import Side, layout_name, manifest, of_peer

log = logging.getLogger("vllm.pdctl")

EXPIRES: Final = "pdctl_blocks_expire_unix"
"""In the kv_transfer_params that travel from prefill through the router to decode: when the blocks are freed."""
_EXPIRED: Final = -1.0
"""In `remote_blocks_expiry_time`, from decode's scheduler to its worker: the lease had run out on arrival."""

_NIXL: Final = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"


class State:
    """What the plugin knows in this process."""

    manifest: Manifest | None = None


state = State()


def register() -> None:
    """Called by vLLM at the start of each process, possibly more than once."""
    if enabled():
        _wrap_factory()


@guarded(None)
def _wrap_factory() -> None:
    """The connector's modules need NIXL; they are touched only where vLLM itself has just imported them."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    known = KVConnectorFactory.get_connector_class

    def get_connector_class(config: Any) -> Any:
        found = known(config)
        _wrap_connector(config)
        return found

    if not getattr(known, "_pdctl", False):
        get_connector_class._pdctl = True  # type: ignore[attr-defined]
        KVConnectorFactory.get_connector_class = staticmethod(get_connector_class)


@guarded(None)
def _wrap_connector(config: Any) -> None:
    from importlib import import_module

    if "nixl" not in str(config.kv_connector).lower():
        return
    worker = import_module(f"{_NIXL}.base_worker").NixlBaseConnectorWorker
    _after(worker, "register_kv_caches", _export)
    _before(worker, "add_remote_agent", _check_peer)
    pull_worker = import_module(f"{_NIXL}.pull_worker").NixlPullConnectorWorker
    _instead(pull_worker, "_read_blocks_for_req", _refuse_expired)
    scheduler = import_module(f"{_NIXL}.pull_scheduler").NixlPullConnectorScheduler
    _instead(scheduler, "request_finished", _add_expiry)
    _before(scheduler, "on_new_request", _note_expired)


def _instead(owner: type, name: str, hook: Callable[..., Any]) -> None:
    """Replace a method by `hook(original, self, …)`, once."""
    original = getattr(owner, name)
    if getattr(original, "_pdctl", False):
        return

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return hook(original, self, *args, **kwargs)

    method._pdctl = True  # type: ignore[attr-defined]
    setattr(owner, name, method)


def _after(owner: type, name: str, hook: Callable[..., Any]) -> None:
    def run(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        hook(self)
        return result

    _instead(owner, name, run)


def _before(owner: type, name: str, hook: Callable[..., Any]) -> None:
    def run(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        hook(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    _instead(owner, name, run)


# ---- (a) the live layout ----


@guarded(None)
def _export(worker: Any) -> None:
    """Build the manifest and let it ride in the handshake payload, which pdctl and peers ask the side channel for."""
    config = worker.vllm_config
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    role: Role = "decode" if str(config.kv_transfer_config.kv_role) == "kv_consumer" else "prefill"
    names = model.served_model_name
    name = str(names[0] if isinstance(names, list) else names).rstrip("/").rsplit("/", 1)[-1]
    text = model.hf_text_config.to_dict()
    state.manifest = manifest(
        worker.kv_cache_config.kv_cache_groups,
        Side(
            role=role,
            version=_version(),
            model=Model(name, text.get("model_type"), folder_digest(str(model.model))),
            backend="nixl",
            backend_version=backend_version("nixl"),
            parallel=Parallel(
                attn_tp=parallel.tensor_parallel_size,
                pp=parallel.pipeline_parallel_size,
                dp=parallel.data_parallel_size,
            ),
            pp_rank=_pp_rank() if parallel.pipeline_parallel_size > 1 else 0,
            layers=tuple(model.get_layers_start_end_indices(parallel)),
            kv_heads=model.get_total_num_kv_heads(),
            page_size=cache.block_size,
            kv_cache_dtype=str(cache.cache_dtype),
            kv_layout=None if worker.use_mla else layout_name(worker.kv_cache_layout),
            config=text,
        ),
    )
    payload = worker.xfer_handshake_metadata
    document = encode_manifest(state.manifest).decode()
    fields = {field.name: getattr(payload, field.name) for field in dataclasses.fields(payload)}
    worker.xfer_handshake_metadata = _payload_type(type(payload))(**fields, pdctl=document)


def _payload_type(base: type) -> type:
    """The handshake payload with one more key. At module level by name, so that it can cross processes."""
    made: type | None = globals().get("Payload")
    if made is None:
        made = dataclasses.make_dataclass("Payload", [("pdctl", str, "")], bases=(base,))
        made.__module__ = __name__
        globals()["Payload"] = made
    return made


def __getattr__(name: str) -> Any:
    """`Payload` for a process that receives one before it made one."""
    if name == "Payload":
        from importlib import import_module

        return _payload_type(import_module(f"{_NIXL}.metadata").NixlHandshakePayload)
    raise AttributeError(name)


def _pp_rank() -> int:
    from vllm.distributed import get_pp_group

    return int(get_pp_group().rank_in_group)


def _version() -> str:
    import vllm

    return str(vllm.__version__).partition("+")[0]


# ---- (b) the handshake ----


def _check_peer(worker: Any, metadata: Any, remote_rank: int = 0, remote_tp_size: int = 1, *_: Any, **__: Any) -> None:
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


def _add_expiry(original: Callable[..., Any], scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    held, params = original(scheduler, request, *args, **kwargs)
    _stamp(scheduler, request, params)
    return held, params


@guarded(None)
def _stamp(scheduler: Any, request: Any, params: Any) -> None:
    deadline = scheduler._reqs_need_send.get(request.request_id)
    if isinstance(params, dict) and deadline is not None:
        params[EXPIRES] = round(time.time() + deadline - time.perf_counter(), 3)


@guarded(None)
def _note_expired(scheduler: Any, request: Any) -> None:
    """On arrival only: from here on vLLM's own heartbeats keep the lease."""
    params = request.kv_transfer_params
    expires = params.get(EXPIRES) if isinstance(params, dict) else None
    if isinstance(expires, int | float) and params.get("do_remote_prefill") and time.time() > expires:
        params["remote_blocks_expiry_time"] = _EXPIRED
        late = time.time() - expires
        log.error("pdctl plugin: PD3112: request %s came %.1f s after its blocks were freed", request.request_id, late)


def _refuse_expired(original: Callable[..., Any], worker: Any, req_id: str, meta: Any) -> Any:
    if _is_expired(meta):
        worker.xfer_stats.record_kv_expired_req()
        return worker._handle_failed_transfer(req_id, None, worker._recv_failures, record_failed_transfer=False)
    return original(worker, req_id, meta)


@guarded(False)
def _is_expired(meta: Any) -> bool:
    return meta.remote is not None and meta.remote.blocks_expiry_time == _EXPIRED
