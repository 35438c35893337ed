"""The handshake of a decode engine of SGLang with a prefill engine: does the pair fit, and which way does it go?

SGLang itself raises on a mismatch, in the scheduler, and the decode engine dies of it with every request it holds; here
the requests of that prefill fail with a code, and the engine serves the others.
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Literal

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins import peer, sglang_registry, sglang_state
from pdctl_transfer.plugins.core import wanted
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.judge import judge, judge_sizes
from pdctl_transfer.plugins.peer import NotYet, Refusal, Unanswered
from pdctl_transfer.plugins.sglang_ways import Way, choose, core_refusal

log = logging.getLogger("pdctl")

_RECHECK_S: Final = 5.0
"""A refused prefill may have been restarted with other arguments under the same address: asked again after this."""

_REGISTER_S: Final = 10.0
"""How long a prefill's ranks may take to show their layout after its bootstrap server answers."""

_OFFER_S: Final = 30.0
"""How long to wait for its word on the core; the bootstrap server itself decides after `sglang_registry.PATIENCE_S`."""

Verdict = Refusal | Literal["wait"] | None
"""None: fits, or cannot be judged; then SGLang's own checks decide."""


def handshake(original: Callable[..., Any], queue: Any, addr_to_reqs: dict[str, list[Any]]) -> Any:
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
def _verdict(queue: Any, address: str) -> Verdict:
    state = sglang_state.state
    if address in queue.kv_manager.prefill_info_table or state.manifest is None:
        return None
    now = time.monotonic()
    known = state.refused.get(address)
    if known is not None and now - known[0] < _RECHECK_S:
        return known[1]
    waited = now - state.early.setdefault(address, now)
    try:
        theirs = peer.fetch(address)
        refusal = judge(theirs, state.manifest) if theirs else judge_sizes(peer.fetch_sizes(address), state.manifest)
        way = _way(address, theirs, refusal, waited)
    except NotYet:  # some of its ranks have not spoken; but do not wait for ever for one whose plugin failed
        way = _without(address, "its layout is not whole") if waited > _REGISTER_S else None
        refusal = None
    except Unanswered:
        state.early.pop(address, None)
        return None  # SGLang asks the same server next, counts its attempts and gives up in its own way
    if way is None:
        queue._ensure_last_attempt_time[address] = now
        return "wait"
    state.early.pop(address, None)
    if refusal is None or way.way == "core":
        state.refused.pop(address, None)
        return None
    return _remember(address, refusal)


def _way(address: str, theirs: Manifest | None, of_engine: Refusal | None, waited: float) -> Way | None:
    """The way of this pair, kept for its requests; None while it is not known."""
    state, core = sglang_state.state, wanted()
    ours = state.manifest
    assert ours is not None
    offer = of_core = None
    if core != "engine" and state.obstacle is None and theirs is not None:
        try:
            offer = sglang_registry.fetch(address)
        except Unanswered as failure:
            return _without(address, str(failure)) if waited > _OFFER_S else None
        of_core = core_refusal(theirs, ours)
    way = choose(
        address,
        core,
        unequal_tp=theirs is not None and theirs.parallel.attn_tp != ours.parallel.attn_tp,
        here=state.obstacle,
        offer=offer,
        of_core=of_core,
        of_engine=of_engine,
    )
    if way is not None:
        state.ways.keep(way, offer)
    return way


def _without(address: str, why: str) -> Way:
    """Prefill's word on the core did not come."""
    way = Way(address, "engine", "PD3141", why)
    sglang_state.state.ways.keep(way)
    return way


def _remember(address: str, refusal: Refusal) -> Refusal:
    sglang_state.state.refused[address] = (time.monotonic(), refusal)
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
