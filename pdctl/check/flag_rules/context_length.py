"""PD1027: decode must not accept requests that prefill refuses for their length.

The router sends a request to both sides at once. Prefill answers a too long one with 400 and sends no KV; decode, which
took it, waits for that KV until its timeout: the client hangs. A lower limit on decode alone is harmless. A side that
gives no limit has the model's own, of the config or of its class, and then every long request fails: an error, or a
warning where neither says that limit. Where both sides state one, only requests between the two fail, and published
fleets run so: a warning.
"""

from collections.abc import Iterator
from typing import Final

from pdctl.check.groups import Group
from pdctl.check.words import Word
from pdctl.flags import dialect
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome, Severity, Skipped

FLAGS: Final = {"sglang": ("--context-length",), "vllm": ("--max-model-len",)}
#: vLLM's letters after a number: in small letters decimal, in capitals binary.
LETTERS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def check_context_length(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Only where prefill has a limit of its own."""
    subject = f"{prefill.name} → {decode.name}"
    ours, theirs = _limit(prefill), _limit(decode)
    if ours is None:
        return
    most = _tokens(ours, prefill)
    limit = decode.max_positions if theirs is None else _tokens(theirs, decode)
    if most is None or (theirs is not None and limit is None):
        side, unread = ("prefill", ours) if most is None else ("decode", theirs)
        yield Skipped("context_length", subject, f"{side} gives {unread.value if unread else None}")
    elif limit is None:
        there = decode.side.said("no limit, nor does the config say one")
        params = {"prefill": most, "decode": "the model's own, which its config does not say,"}
        yield Finding("PD1027", subject, (Evidence(ours.where, ours.value), there), params, "warning")
    elif limit <= most:
        yield Held("context_length", subject, f"{most} on prefill, {limit} on decode")
    else:
        there = Evidence(theirs.where, theirs.value) if theirs else decode.side.said(f"the model's own limit: {limit}")
        severity: Severity = "warning" if theirs else "error"
        params = {"prefill": most, "decode": limit}
        yield Finding("PD1027", subject, (Evidence(ours.where, ours.value), there), params, severity)


def _limit(group: Group) -> Word | None:
    return group.flag(*FLAGS.get(dialect(group.manifest.engine.name), ()))


def _tokens(word: Word, group: Group) -> int | None:
    """The limit in tokens; None where it is no number, as a placeholder or vLLM's `auto` is not."""
    letter: int | None = LETTERS.get(word.value[-1:]) if dialect(group.manifest.engine.name) == "vllm" else None
    if letter is None:
        return word.number
    whole, point, part = word.value[:-1].partition(".")
    if not whole.isdecimal() or (point and not part.isdecimal()) or len(word.value) > 18:
        return None
    return int(whole + part) * letter // int(10 ** len(part))
