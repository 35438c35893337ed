"""The plugin inside SGLang: entry point `pdctl` in group `sglang.srt.plugins`, called in every process of the engine.

Hooks, all through SGLang's own HookRegistry:
- the prefill and decode queues' `_init_kv_manager`: build the live manifest; a prefill rank gives it to its bootstrap
  server, which keeps one a stage and shows the whole at `/pdctl/layout`;
- the decode queue's `_ensure_prefill_info`, the handshake, before any byte: judge the prefill side's manifest. SGLang
  itself raises there on a mismatch, in the scheduler, and the decode engine dies of it with every request it holds;
  here the requests of that prefill fail with a code, and the engine serves the others;
- `Scheduler.get_internal_state`: layout, events and the ways of pairs appear in `/server_info`;
- the end of each transfer, and each failure: an event.

Where the core is wanted (`PDCTL_CORE`), two more: `get_kv_class` gives out classes over SGLang's own, which know both
ways, and `DecodeTransferQueue._defer_release` keeps pages until the core has proven that nobody writes there.
"""

import json
import logging
import os
from typing import Any, Final

import msgspec

from pdctl_transfer import __version__
from pdctl_transfer.layout.manifest import Manifest, Parallel, Role, Transfer
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins import core, peer, sglang_registry, sglang_state, stated
from pdctl_transfer.plugins.guard import enabled, guarded
from pdctl_transfer.plugins.peer import code_of
from pdctl_transfer.plugins.sglang_core import get_kv_class
from pdctl_transfer.plugins.sglang_handshake import handshake
from pdctl_transfer.plugins.sglang_install import hold, install
from pdctl_transfer.plugins.sglang_layout import Side, manifest
from pdctl_transfer.plugins.sglang_state import EVENTS
from pdctl_transfer.plugins.stages import JSON
from pdctl_transfer.plugins.versions import backend_version
from pdctl_transfer.telemetry import Tally, Telemetry, merged

log = logging.getLogger("pdctl")

_DISAGGREGATION: Final = "sglang.srt.disaggregation"


def register() -> None:
    """Called by SGLang at the start of each process."""
    if not enabled():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook, kind in (
        (f"{_DISAGGREGATION}.prefill.PrefillBootstrapQueue._init_kv_manager", _export_prefill, HookType.AFTER),
        (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._init_kv_manager", _export_decode, HookType.AFTER),
        (f"{_DISAGGREGATION}.decode.DecodePreallocQueue._ensure_prefill_info", handshake, HookType.AROUND),
        (f"{_DISAGGREGATION}.common.conn.CommonKVBootstrapServer._setup_routes", _add_route, HookType.AFTER),
        (f"{_DISAGGREGATION}.common.conn.CommonKVSender.get_transfer_metric", _transferred, HookType.AFTER),
        (f"{_DISAGGREGATION}.common.conn.CommonKVManager.record_failure", _failed, HookType.AFTER),
        ("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _show, HookType.AFTER),
    ):
        HookRegistry.register(target, hook, kind)
    if core.wanted() == "engine":
        return
    os.environ.setdefault("MC_TCP_LANES_PER_PEER", "1")  # else nothing proves over TCP that a failed write has ended
    os.environ.setdefault("MC_LOG_LEVEL", "WARNING")  # else a line for each batch
    HookRegistry.register(f"{_DISAGGREGATION}.utils.get_kv_class", get_kv_class, HookType.AROUND)
    HookRegistry.register(f"{_DISAGGREGATION}.decode.DecodeTransferQueue._defer_release", hold, HookType.AFTER)


# ---- (a) the live layout ----


@guarded(None)
def _export_prefill(manager: Any, queue: Any, *_: Any, **__: Any) -> None:
    sglang_state.state.manifest = _live(manager, queue, "prefill")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(manager.bootstrap_host, manager.bootstrap_host)
    if manager.dist_init_addr:
        host = str(manager.dist_init_addr).rsplit(":", 1)[0]
    address = f"{host}:{manager.bootstrap_port}"
    speaks = manager.attn_tp_rank == 0 and manager.attn_cp_rank == 0 and not manager.system_dp_rank
    if speaks and not peer.publish(address, sglang_state.state.manifest):
        log.warning("pdctl plugin: the bootstrap server at %s did not take the layout", address)
    install(manager, queue, address)


@guarded(None)
def _export_decode(manager: Any, queue: Any, *_: Any, **__: Any) -> None:
    sglang_state.state.manifest = _live(manager, queue, "decode")
    install(manager, queue, "")


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
    sglang_state.state.telemetry = Telemetry(role, f"pp{manager.pp_rank}tp{manager.attn_tp_rank}", EVENTS)
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
        status, body = sglang_state.state.stages.put(await request.read())
        return web.Response(body=body, status=status)

    async def get(_: Any) -> Any:
        status, body = sglang_state.state.stages.get()
        return web.Response(body=body, status=status, content_type=JSON if status == 200 else "text/plain")

    server.app.router.add_put(peer.ROUTE, put)
    server.app.router.add_get(peer.ROUTE, get)
    _add_registry(server.app)


@guarded(None)
def _add_registry(app: Any) -> None:
    """The core's own registry, in this process, where ranks and decode engines are told of it."""
    if core.wanted() == "engine":
        return
    from sglang.srt.utils.network import get_local_ip_auto

    options = core.options(get_local_ip_auto(), os.environ.get(core.OPTIONS))
    sglang_registry.routes(app, sglang_registry.serve(options, sglang_state.state.stages.parallel))


# ---- (b) what happened ----


@guarded(None)
def _transferred(metric: Any, sender: Any, *_: Any, **__: Any) -> None:
    """SGLang counts bytes over all components of a request, and seconds only on some backends."""
    if getattr(sender, "way", "") == "core":  # which has counted for itself
        return
    room = int(sender.bootstrap_room)
    moved = Tally(nbytes=int(metric.transfer_total_bytes or 0))
    moved.seconds = float(metric.transfer_latency_s or 0.0)
    sglang_state.state.telemetry.written(room, "", "all", "engine", moved, 0)
    sglang_state.state.telemetry.ended(room, "", "", "", {})


@guarded(None)
def _failed(_: None, manager: Any, room: int, reason: str, *__: Any, **___: Any) -> None:
    side = sglang_state.state.manifest.role if sglang_state.state.manifest is not None else "unknown"
    sglang_state.state.telemetry.ended(int(room), code_of(reason), side, str(reason)[:300], {})


@guarded(None)
def _show(answer: Any, *_: Any, **__: Any) -> None:
    """Add `pdctl` to the internal state that /server_info shows: version, layout, events, ways."""
    state = sglang_state.state
    told = [one for one in (state.telemetry, state.core) if one is not None]
    events = sorted((event for one in told for event in one.events()), key=lambda event: event.at)
    shown: dict[str, Any] = {
        "version": __version__,
        "metrics": merged([one.exposition() for one in told]),
        "events": msgspec.to_builtins(events),
        "ways": msgspec.to_builtins(state.ways.shown()),
    }
    if state.manifest is not None:
        shown["layout"] = json.loads(encode_manifest(state.manifest))
    answer.internal_state["pdctl"] = shown
