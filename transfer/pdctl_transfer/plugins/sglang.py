"""The plugin inside SGLang: entry point `pdctl` in group `sglang.srt.plugins`, called in every process of the engine.

Hooks, all through SGLang's own HookRegistry:
- the prefill and decode queues' `_init_kv_manager`: build the live manifest; a prefill rank gives it to its bootstrap
  server, which keeps one a stage and shows the whole at `/pdctl/layout`;
- the decode queue's `_ensure_prefill_info`, the handshake, before any byte: judge the prefill side's manifest. SGLang
  itself raises there on a mismatch, in the scheduler, and the decode engine dies of it with every request it holds;
  here the requests of that prefill fail with a code, and the engine serves the others;
- `Scheduler.get_internal_state`: layout and events appear in `/server_info`;
- the end of each transfer, and each failure: an event.
"""

import json
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from pdctl_transfer import __version__
from pdctl_transfer.layout.manifest import Manifest, Parallel, Role, Transfer
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins import peer, stated
from pdctl_transfer.plugins.guard import enabled, guarded
from pdctl_transfer.plugins.judge import judge, judge_sizes
from pdctl_transfer.plugins.peer import NotYet, Refusal, Unanswered, code_of
from pdctl_transfer.plugins.sglang_layout import Side, manifest
from pdctl_transfer.plugins.stages import JSON, Stages
from pdctl_transfer.plugins.versions import backend_version
from pdctl_transfer.telemetry import Tally, Telemetry

log = logging.getLogger("pdctl")

_RECHECK_S: Final = 5.0
"""A refused prefill may have been restarted with other arguments under the same address: asked again after this."""

_REGISTER_S: Final = 10.0
"""How long a prefill's ranks may take to show their layout after its bootstrap server answers."""

_EVENTS: Final = 256
_DISAGGREGATION: Final = "sglang.srt.disaggregation"


class State:
    """What the plugin knows in this process."""

    def __init__(self) -> None:
        self.telemetry = Telemetry("unknown", "0", _EVENTS)
        self.manifest: Manifest | None = None
        self.stages = Stages()
        self.refused: dict[str, tuple[float, Refusal]] = {}
        self.early: dict[str, float] = {}


state = State()


def register() -> None:
    """Called by SGLang at the start of each process."""
    if not enabled():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook, kind in (
        (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue._init_kv_manager", _export_prefill, HookType.AFTER),
        (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._init_kv_manager", _export_decode, HookType.AFTER),
        (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._ensure_prefill_info", _handshake, HookType.AROUND),
        (f"{_DISAGGREGATION}.common.conn.CommonKVBootstrapServer._setup_routes", _add_route, HookType.AFTER),
        (f"{_DISAGGREGATION}.common.conn.CommonKVSender.get_transfer_metric", _transferred, HookType.AFTER),
        (f"{_DISAGGREGATION}.common.conn.CommonKVManager.record_failure", _failed, HookType.AFTER),
        ("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _show, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)


# ---- (a) the live layout ----


@guarded(None)
def _export_prefill(manager: Any, queue: Any, *_: Any, **__: Any) -> None:
    state.manifest = _live(manager, queue, "prefill")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(manager.bootstrap_host, manager.bootstrap_host)
    if manager.dist_init_addr:
        host = str(manager.dist_init_addr).rsplit(":", 1)[0]
    if manager.attn_tp_rank == 0 and manager.attn_cp_rank == 0 and not manager.system_dp_rank:
        address = f"{host}:{manager.bootstrap_port}"
        if not peer.publish(address, state.manifest):
            log.warning("pdctl plugin: the bootstrap server at %s did not take the layout", address)


@guarded(None)
def _export_decode(manager: Any, queue: Any, *_: Any, **__: Any) -> None:
    state.manifest = _live(manager, queue, "decode")


def _live(manager: Any, queue: Any, role: Role) -> Manifest:
    """This rank's manifest, from what it registered with its transfer backend."""
    from importlib.metadata import version

    config, arguments, pool = queue.scheduler.model_config, manager.server_args, queue.token_to_kv_pool
    layers = (int(getattr(pool, "start_layer", 0) or 0), int(getattr(pool, "end_layer", 0) or 0))
    text = config.hf_text_config.to_dict()
    if layers[1] <= layers[0]:
        layers = (0, int(config.num_hidden_layers))
    elif manager.pp_size == 1:
        layers = (0, max(int(config.num_hidden_layers), layers[1]))
    backend = str(arguments.disaggregation_transfer_backend)
    state.telemetry = Telemetry(role, f"pp{manager.pp_rank}tp{manager.attn_tp_rank}", _EVENTS)
    return manifest(
        manager.kv_args,
        Side(
            role=role,
            engine_version=version("sglang"),
            model=stated.model(
                _name(arguments), text.get("model_type"), str(arguments.model_path), _overrides(arguments)
            ),
            transfer=Transfer(backend, backend_version(backend)),
            parallel=Parallel(
                attn_tp=manager.attn_tp_size, attn_cp=manager.attn_cp_size, pp=manager.pp_size, dp=manager.attn_dp_size
            ),
            layers=layers,
            num_layers=int(config.num_hidden_layers),
            kv_heads=int(config.get_total_num_kv_heads()),
            mla=bool(manager.is_mla_backend or manager.is_hybrid_mla_backend),
            speculative=_speculative(arguments),
            config=text,
            settings=stated.of_sglang(arguments, role, getattr(config, "dtype", None)),
        ),
    )


def _overrides(arguments: Any) -> object:
    """What is put over the model's config; text that is no JSON the engine has refused."""
    given = getattr(arguments, "json_model_override_args", None)
    return json.loads(given) if isinstance(given, str) and given else None


def _name(arguments: Any) -> str:
    """The served name, or the last part of the path where none was given."""
    return str(arguments.served_model_name or arguments.model_path).rstrip("/").rsplit("/", 1)[-1]


def _speculative(arguments: Any) -> dict[str, Any] | None:
    algorithm = getattr(arguments, "speculative_algorithm", None)
    if not algorithm:
        return None
    tokens = getattr(arguments, "speculative_num_draft_tokens", None)
    return {"algorithm": str(algorithm)} | ({"num_draft_tokens": int(tokens)} if tokens else {})


@guarded(None)
def _add_route(_: None, server: Any, *__: Any, **___: Any) -> None:
    """The bootstrap server keeps the stages that ranks PUT, and shows them as one manifest once all are there."""
    from aiohttp import web

    async def put(request: Any) -> Any:
        status, body = state.stages.put(await request.read())
        return web.Response(body=body, status=status)

    async def get(_: Any) -> Any:
        status, body = state.stages.get()
        return web.Response(body=body, status=status, content_type=JSON if status == 200 else "text/plain")

    server.app.router.add_put(peer.ROUTE, put)
    server.app.router.add_get(peer.ROUTE, get)


# ---- (b) the handshake ----


def _handshake(original: Callable[..., Any], queue: Any, addr_to_reqs: dict[str, list[Any]]) -> Any:
    """Refuse the requests of a prefill that does not fit; let SGLang see only the others, when it would look."""
    ready: dict[str, list[Any]] = {}
    remaining: list[Any] = []
    for address, requests in addr_to_reqs.items():
        verdict = "wait" if _too_early(queue, address) else _verdict(queue, address)
        if verdict == "wait":
            remaining += requests
            continue
        if verdict is None:
            try:
                now_ready, now_remaining = original(queue, {address: requests})
                ready |= now_ready
                remaining += now_remaining
                continue
            except RuntimeError as mismatch:  # a check of SGLang's own that is not among our rules: it raises to die
                verdict = _remember(address, Refusal("PD3110", str(mismatch)))
        _refuse(queue.kv_manager, address, requests, verdict)
    return ready, remaining


@guarded(False)
def _too_early(queue: Any, address: str) -> bool:
    """SGLang asks an address again only after an interval; to ask ours more often would block its scheduler."""
    last = queue._ensure_last_attempt_time.get(address)
    return last is not None and time.monotonic() - last < queue._ensure_retry_interval


@guarded(None)
def _verdict(queue: Any, address: str) -> Refusal | Literal["wait"] | None:
    """None: fits, or cannot be judged; then SGLang's own checks decide."""
    if address in queue.kv_manager.prefill_info_table or state.manifest is None:
        return None
    now = time.monotonic()
    known = state.refused.get(address)
    if known is not None and now - known[0] < _RECHECK_S:
        return known[1]
    try:
        theirs = peer.fetch(address)
        if theirs is None:
            refusal = judge_sizes(peer.fetch_sizes(address), state.manifest)
        else:
            refusal = judge(theirs, state.manifest)
    except NotYet:  # some of its ranks have not spoken; but do not wait for ever for one whose plugin failed
        if now - state.early.setdefault(address, now) > _REGISTER_S:
            return None
        queue._ensure_last_attempt_time[address] = now
        return "wait"
    except Unanswered:
        return None  # SGLang asks the same server next, counts its attempts and gives up in its own way
    state.early.pop(address, None)
    if refusal is None:
        state.refused.pop(address, None)
        return None
    return _remember(address, refusal)


def _remember(address: str, refusal: Refusal) -> Refusal:
    state.refused[address] = (time.monotonic(), refusal)
    log.error("pdctl plugin: %s: the prefill engine at %s is refused: %s", refusal.code, address, refusal.text)
    return refusal


@guarded(None)
def _refuse(manager: Any, address: str, requests: list[Any], refusal: Refusal) -> None:
    """End these requests on both sides. The next poll of the queue answers them with the reason."""
    from sglang.srt.disaggregation.base.conn import KVPoll

    for request in requests:
        receiver, room = request.kv_receiver, request.req.bootstrap_room
        if receiver is None:
            continue
        _tell_prefill(receiver, address)
        manager.record_failure(room, f"{refusal.code}: {refusal.text}")
        manager.update_status(room, KVPoll.Failed)
        receiver.conclude_state = KVPoll.Failed
        receiver.abort()  # failed already: this only tells the prefill's ranks


@guarded(None)
def _tell_prefill(receiver: Any, address: str) -> None:
    """Let abort() reach the prefill's ranks, which it has no addresses of yet: else they wait out their timeout."""
    sizes = peer.fetch_sizes(address)
    receiver.bootstrap_infos = [
        info
        for tp in range(int(sizes["attn_tp_size"]))
        for pp in range(int(sizes["pp_size"]))
        if (info := receiver._get_bootstrap_info_from_server(0, 0, tp, pp)) is not None
    ]
    for info in receiver.bootstrap_infos:
        info.setdefault("is_dummy", False)


# ---- (c) what happened ----


@guarded(None)
def _transferred(metric: Any, sender: Any, *_: Any, **__: Any) -> None:
    """SGLang counts bytes over all components of a request, and seconds only on some backends."""
    room = int(sender.bootstrap_room)
    moved = Tally(nbytes=int(metric.transfer_total_bytes or 0))
    moved.seconds = float(metric.transfer_latency_s or 0.0)
    state.telemetry.written(room, "", "all", "engine", moved, 0)
    state.telemetry.ended(room, "", "", "", {})


@guarded(None)
def _failed(_: None, manager: Any, room: int, reason: str, *__: Any, **___: Any) -> None:
    side = state.manifest.role if state.manifest is not None else "unknown"
    state.telemetry.ended(int(room), code_of(reason), side, str(reason)[:300], {})


@guarded(None)
def _show(answer: Any, *_: Any, **__: Any) -> None:
    """Add `pdctl` to the internal state that /server_info shows: version, layout, events."""
    telemetry = state.telemetry
    shown: dict[str, Any] = {
        "version": __version__,
        "metrics": telemetry.exposition(),
        "events": json.loads(telemetry.events_json()),
    }
    if state.manifest is not None:
        shown["layout"] = json.loads(encode_manifest(state.manifest))
    answer.internal_state["pdctl"] = shown
