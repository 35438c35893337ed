"""The plugin's hooks in vLLM's Mooncake connector, where prefill writes to decode.

Decode asks the prefill engine's bootstrap server where its ranks are, before it sends any of them an address. So the
layout goes the same way: prefill's ranks give theirs to that server, and the worker's `handle_new_engine_id`, the
handshake, asks for it and judges. The stock connector compares lengths of regions only: another model of the same
geometry, another order of axes or another KV dtype of the same size pass it and give wrong tokens.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, Final

from pdctl_transfer.plugins import peer, wrap
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.judge import judge
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.stages import JSON, MAX_BYTES, Stages
from pdctl_transfer.plugins.vllm_state import state
from pdctl_transfer.telemetry import Tally

log = logging.getLogger("vllm.pdctl")

MODULE: Final = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake"
_REGISTER_S: Final = 10.0
"""How long a prefill's stages may take to show their layout after its bootstrap server answers."""


def hook(export: Callable[..., Any]) -> None:
    """Wrap the connector's classes. `export(worker)` runs when a worker has registered its caches."""
    module = import_module(f"{MODULE}.mooncake_connector")
    worker = module.MooncakeConnectorWorker
    wrap.after(worker, "register_kv_caches", lambda one, _: (export(one), publish(one)))
    wrap.instead(worker, "handle_new_engine_id", handshake)
    wrap.instead(worker, "_send_blocks", send_blocks)
    wrap.before(worker, "_handle_failed_recv", note_failure)
    wrap.after(worker, "get_transfer_results", state.settle)
    wrap.after(import_module(f"{MODULE}.mooncake_utils").MooncakeBootstrapServer, "_register_routes", add_route)


# ---- the live layout ----


@guarded(None)
def add_route(server: Any, _: Any) -> None:
    """Let the bootstrap server keep and show the stages' layouts."""
    from starlette.responses import Response

    stages = Stages()

    async def put(request: Any) -> Any:
        status, text = stages.put(await beginning(request.stream()))
        return Response(text, status)

    async def get(_: Any) -> Any:
        status, text = stages.get()
        return Response(text, status, media_type=JSON if status == 200 else None)

    server.app.add_route(peer.ROUTE, put, methods=["PUT"])
    server.app.add_route(peer.ROUTE, get, methods=["GET"])


async def beginning(chunks: Any) -> bytes:
    """A body, of which no more is taken once it is longer than any stage's."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MAX_BYTES:
            break
    return bytes(body)


@guarded(None)
def publish(worker: Any) -> None:
    """A prefill stage's first rank tells the bootstrap server what it holds."""
    if worker.is_kv_consumer or worker.tp_rank or worker.dp_rank or state.manifest is None:
        return
    host, port = import_module(f"{MODULE}.mooncake_connector").get_mooncake_bootstrap_addr(worker.vllm_config)
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    if not peer.publish(address, state.manifest):
        log.warning("pdctl plugin: the bootstrap server at %s did not take the layout", address)


# ---- the handshake ----


async def handshake(original: Callable[..., Any], worker: Any, engine_id: str, pulls: Mapping[str, Any]) -> Any:
    """Fail the requests of a prefill that does not fit; the next one asks again, it may have been restarted."""
    address = next(iter(pulls.values())).remote_bootstrap_addr.partition("://")[2]
    refusal = await asyncio.get_running_loop().run_in_executor(None, _verdict, address)
    if refusal is None:
        return await original(worker, engine_id, pulls)
    log.error("pdctl plugin: %s: the prefill engine at %s is refused: %s", refusal.code, address, refusal.text)
    return worker._handle_failed_recv(pulls, list(pulls), f"{refusal.code}: {refusal.text}")


@guarded(None)
def _verdict(address: str) -> Refusal | None:
    """None: fits, or cannot be judged; then the connector's own checks decide."""
    own, deadline = state.manifest, time.monotonic() + _REGISTER_S
    while own is not None:
        try:
            theirs = peer.fetch(address)
        except peer.NotYet:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.2)
        except peer.Unanswered:
            return None  # the connector asks the same server next, and fails the requests in its own way
        else:
            return None if theirs is None else judge(theirs, own)
    return None


# ---- events ----


def send_blocks(original: Callable[..., Any], worker: Any, session: str, *lists: Any) -> Any:
    """One write of whole requests: its bytes, blocks and seconds."""
    start = time.perf_counter()
    status = original(worker, session, *lists)
    note_write(session, lists[-1], time.perf_counter() - start, status)
    return status


@guarded(None)
def note_write(session: str, lengths: Collection[int], seconds: float, status: int) -> None:
    """The engine's own zero is the only proof that there is; decode confirms to its scheduler."""
    if status:
        state.telemetry.ended(-1, "PD3111", "prefill", f"Mooncake answered {status} writing to {session}", {})
        return
    moved = Tally(len(lengths), sum(lengths))
    moved.seconds = seconds
    state.telemetry.written(-1, session, "all", "engine", moved, 0)


@guarded(None)
def note_failure(worker: Any, pulls: Any, requests: Collection[str], reason: str) -> None:
    """Keep why requests are going to fail."""
    for request in requests:
        state.failing.setdefault(request, reason)
