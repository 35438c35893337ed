"""PD1027: decode must not accept requests that prefill refuses for their length.

The router sends a request to both sides at once. Prefill answers a too long one with 400 and sends no KV; decode, which
took it, waits for that KV until its timeout: the client hangs. A lower limit on decode alone is harmless. A side that
gives no limit has the model's own.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl.check.words import Word
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome, Skipped

FLAGS = {"sglang": ("--context-length",), "vllm": ("--max-model-len",)}


def check_context_length(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Only where prefill has a limit of its own."""
    subject = f"{prefill.name} → {decode.name}"
    ours, theirs = _limit(prefill), _limit(decode)
    if ours is None or ours.number is None:
        return
    limit = decode.max_positions if theirs is None else theirs.number
    if limit is None:
        gives = "no limit, nor does the config" if theirs is None else theirs.value
        yield Skipped("context_length", subject, f"decode gives {gives}")
    elif limit <= ours.number:
        yield Held("context_length", subject, f"{ours.number} on prefill, {limit} on decode")
    else:
        there = Evidence(theirs.where, theirs.value) if theirs else decode.side.said(f"the model's own limit: {limit}")
        params = {"prefill": ours.number, "decode": limit}
        yield Finding("PD1027", subject, (Evidence(ours.where, ours.value), there), params)


def _limit(group: Group) -> Word | None:
    return group.flag(*FLAGS.get(group.manifest.engine.name, ()))
