"""PD1060: a chunk of SGLang's per-token transfer must fit into Mooncake's queue over TCP.

Across unequal attention TP SGLang 0.5.23 sends each layer's tensor as one batch, a block a token
(disaggregation/mooncake/conn.py:1647, send_kvcache_slice). Over TCP Mooncake 0.3.13 takes 1024 queued and 1024 waiting
blocks a peer and refuses the batch beyond that; SGLang then takes the decode engine for dead, so that later requests
fail as well. A batch has the tokens of a chunk, and of a cached prefix all that are cached: it is sent at once.
"""

from collections.abc import Iterator
from typing import Final

from pdctl.check.groups import Group
from pdctl.check.moves import STAGING, TRUE
from pdctl_transfer.rules import Evidence, Outcome, Pair
from pdctl_transfer.rules.releases import release
from pdctl_transfer.rules.unequal_tp import is_mla, kv_heads

QUEUED, WAITING = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"
DEFAULT: Final = 1024
MOST: Final = 32768
"""A higher number is called invalid, and the default used."""
SINCE: Final = "0.3.13"
"""The release of Mooncake in which this was measured: 2048 blocks pass, 2200 do not."""
THREADS, QUEUES = "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", "SGLANG_DISAGGREGATION_QUEUE_SIZE"
QUEUES_DEFAULT: Final = 4


def check_token_batches(pair: Pair, prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Only for a fleet file that says TCP, and state that is cut token by token."""
    if not _cut(pair, prefill, decode):
        return
    fits = _fits(prefill)
    most, evidence = _longest(prefill, decode)
    if most is None:
        reason = f"{fits} tokens fit into a batch over TCP; how long one gets is not known"
        yield pair.skipped("token_batches", reason, needed=True)
    elif most <= fits:
        yield pair.held("token_batches", f"a batch of at most {most} tokens fits into the {fits} blocks that TCP takes")
    else:
        tp = f"attention TP {pair.tp[0]} → {pair.tp[1]}"
        what = f"{tp} over TCP: SGLang sends a block a token, {most} in one batch at most, and Mooncake takes {fits}"
        yield pair.finding("PD1060", [*pair.evidence("attn_tp"), *evidence], what=what, fits=fits)


def _cut(pair: Pair, prefill: Group, decode: Group) -> bool:
    """Whether KV goes a block a token over Mooncake's TCP."""
    if pair.by_core or pair.engines != {"sglang"} or pair.backend != "mooncake" or not pair.unequal_tp or pair.outside:
        return False
    if prefill.moves.protocol != "tcp" or is_mla(pair) or not kv_heads(pair.prefill, "kv"):
        return False
    stated = release(pair.prefill.transfer.version)
    since = release(SINCE)
    staged = all(group.moves.limits.get(STAGING, "").lower() in TRUE for group in (prefill, decode))
    return not staged and (stated is None or (since is not None and stated >= since))


def _fits(prefill: Group) -> int:
    """Tokens of one batch that are never refused: what Mooncake takes of one peer, shared by batches at one time."""
    limits = prefill.moves.limits
    taken = sum(_number(limits.get(name), DEFAULT, MOST) for name in (QUEUED, WAITING))
    threads = _number(limits.get(THREADS), 0, MOST) // _number(limits.get(QUEUES), QUEUES_DEFAULT, MOST)
    return taken // max(1, threads)


def _number(text: str | None, default: int, most: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and 0 < int(text) <= most else default


def _longest(prefill: Group, decode: Group) -> tuple[int | None, list[Evidence]]:
    """Tokens of the longest batch, and what bounds it; None where nothing that is known does.

    A cached prefix goes at once, so a chunk bounds a batch only where nothing is cached. SGLang takes the size of a
    chunk by the device's memory where none is given.
    """
    bounds: dict[int, Evidence] = {}
    for group in (decode, prefill):
        if (given := group.flag("--context-length")) is not None and given.number:
            bounds[given.number] = Evidence(given.where, given.value)
        elif group.max_positions:
            bounds[group.max_positions] = group.side.said(f"the model's own limit: {group.max_positions} tokens")
    pool = prefill.flag("--max-total-tokens")
    if pool is not None and pool.number:
        bounds[pool.number] = Evidence(pool.where, pool.value)
    alone, chunk = prefill.flag("--disable-radix-cache"), prefill.flag("--chunked-prefill-size")
    if alone is not None and chunk is None:
        return None, []
    if alone is not None and chunk is not None and chunk.number:
        bounds[chunk.number] = Evidence(chunk.where, chunk.value)
    most = min(bounds, default=None)
    return most, [bounds[most]] if most is not None else []
