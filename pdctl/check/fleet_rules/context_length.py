"""PD1027: decode must not accept requests that prefill refuses for their length.

The router sends a request to both sides at once. Prefill answers a too long one with 400 and sends no KV; decode, which
took it, waits for that KV until its timeout: the client hangs. A lower limit on decode alone is harmless. A side that
gives no limit has the model's own.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pdctl.check.fleet_rules.words import Word, engine_of, flag
from pdctl.derive.config import Config
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome, Skipped

FLAGS = {"sglang": "--context-length", "vllm": "--max-model-len"}


def check_context_length(loaded: LoadedFleet, config: Mapping[str, Any]) -> Iterator[Outcome]:
    """Every prefill pool with a limit of its own against every decode pool."""
    own = Config(config, "config.json").text().get("max_position_embeddings")
    for prefill in loaded.pools("prefill"):
        ours = _limit(loaded, prefill)
        if ours is None:
            continue
        for decode in loaded.pools("decode"):
            subject = f"{prefill.name} → {decode.name}"
            theirs = _limit(loaded, decode)
            if theirs is None and not isinstance(own, int):
                reason = "decode gives no limit and the config no max_position_embeddings"
                yield Skipped("context_length", subject, reason)
                continue
            limit = int(theirs.value) if theirs else own
            if limit <= int(ours.value):
                yield Held("context_length", subject, f"{ours.value} on prefill, {limit} on decode")
                continue
            there = theirs.where if theirs else f"{loaded.where(decode.key)} (the model's own)"
            evidence = (Evidence(ours.where, ours.value), Evidence(there, str(limit)))
            yield Finding("PD1027", subject, evidence, {"prefill": ours.value, "decode": limit})


def _limit(loaded: LoadedFleet, pool: Pool) -> Word | None:
    """The limit that the pool's args give; a placeholder is none."""
    name = FLAGS.get(engine_of(loaded, pool))
    found = flag(loaded, pool, name) if name else None
    return found if found and found.value.isascii() and found.value.isdigit() and len(found.value) < 19 else None
