"""PD1015: draft models have KV of their own, which must match where both sides hold it.

Decode alone may speculate: it fills the drafts' KV itself, and published fleets do so (information). Prefill alone may
not: its drafts have nowhere to go. Methods that keep no KV may be on either side.

What a handshake compares is the connector's own business. The hash of vLLM's NIXL connectors covers speculation from
the target's hidden states, with its method, draft model and types, not the number of tokens; methods that look at the
text alone are outside of it (0.32.0, nixl/metadata.py:99). Its Mooncake connector compares nothing of the kind.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdctl_transfer.layout.algebra import entries_of, is_draft, num_layers
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.contracts import compares
from pdctl_transfer.rules.item_lengths import shape, unlike_pairs
from pdctl_transfer.rules.missing import entries_listed
from pdctl_transfer.rules.outcome import Outcome, Severity
from pdctl_transfer.rules.pair import Pair, listed

#: Methods that draft from the target's hidden states, as vLLM's `use_eagle` lists them; the many MTP names are one.
FROM_HIDDEN_STATES: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
#: Methods without a KV cache of their own.
WITHOUT_KV: Final = frozenset({"ngram", "ngram_gpu", "suffix", "medusa", "none"})
#: Settings of such a method that the hash covers, and what it takes where one is not given.
HASHED: Final[Mapping[str, object]] = {
    "method": None,
    "model": None,
    "revision": None,
    "code_revision": None,
    "parallel_drafting": False,
    "kv_cache_dtype": None,
}


def check_speculative(pair: Pair) -> Iterator[Outcome]:
    """Who speculates; then the drafts' entries; then the settings, which may differ."""
    prefill, decode = speculates(pair.prefill), speculates(pair.decode)
    if not prefill and not decode:
        yield pair.held("speculative", "neither side speculates")
    elif (hashed := _hashed_apart(pair)) and pair.outside:
        yield pair.skipped("speculative", f"{hashed}: {pair.outside}", needed=True)
    elif hashed:
        what = f"{hashed}; vLLM's NIXL handshake compares that and refuses the peer"
        yield _differs(pair, what, "error")
    elif not prefill:
        yield _differs(pair, f"only decode speculates ({_named(pair.decode)}); {_filled(pair)}", "info")
    elif not decode and method_of(pair.prefill) in WITHOUT_KV:
        yield _differs(pair, f"only prefill speculates ({_named(pair.prefill)}), which keeps no KV", "info")
    elif not decode:
        yield _differs(
            pair, f"only prefill speculates ({_named(pair.prefill)}); its drafts have no place on decode", "error"
        )
    else:
        yield from _both(pair)


def speculates(manifest: Manifest) -> bool:
    """By its settings, or by the draft entries that it registers."""
    layers = num_layers(manifest)
    return manifest.speculative is not None or any(is_draft(entry.layer, layers) for _, entry in entries_of(manifest))


def method_of(manifest: Manifest) -> str | None:
    """The method in lower case, every model's own MTP as `mtp`; None where the settings name none."""
    settings = manifest.speculative or {}
    word = settings.get("algorithm") or settings.get("method")
    if not isinstance(word, str):
        return None
    word = word.lower()
    return "mtp" if word.endswith("_mtp") else word


def _hashed_apart(pair: Pair) -> str:
    """What the pair's handshake compares of speculation and finds unequal, in words; empty where it does not."""
    if not compares(pair, "speculative"):
        return ""
    methods = method_of(pair.prefill), method_of(pair.decode)
    prefill, decode = (method in FROM_HIDDEN_STATES for method in methods)
    if not prefill and not decode:
        return ""
    if prefill != decode:
        side, other = ("prefill", methods[1]) if prefill else ("decode", methods[0])
        named = methods[0] if prefill else methods[1]
        return f"only {side} drafts from hidden states ({named}); the other side's method is {other or 'none'}"
    ours, theirs = pair.prefill.speculative or {}, pair.decode.speculative or {}
    values = ({**ours, "method": methods[0]}, {**theirs, "method": methods[1]})
    apart = [key for key, unset in HASHED.items() if values[0].get(key, unset) != values[1].get(key, unset)]
    return f"{listed(apart)} of the draft differ" if apart else ""


def _filled(pair: Pair) -> str:
    """How decode gets on without drafts from prefill."""
    return "it keeps no KV" if method_of(pair.decode) in WITHOUT_KV else "it fills the drafts' KV itself"


def _both(pair: Pair) -> Iterator[Outcome]:
    layers = num_layers(pair.prefill)
    homeless = [problem for problem in pair.pairing.of("no_partner") if problem.draft]
    unlike = [entries for entries in unlike_pairs(pair) if is_draft(entries.layer, layers)]
    if homeless:
        yield _differs(pair, f"the drafts' {entries_listed(homeless)} of prefill have no place on decode", "error")
    if unlike:
        src, dst = unlike[0].src.entry, unlike[0].dst.entry
        evidence = [pair.prefill_side.said(shape(src)), pair.decode_side.said(shape(dst))]
        what = f"the drafts' {dst.tensor}: {src.item_len} bytes an item on prefill, {dst.item_len} on decode"
        yield pair.finding("PD1015", evidence, "error", what=what)
    if homeless or unlike:
        return
    differing = _settings_that_differ(pair.prefill.speculative or {}, pair.decode.speculative or {})
    if differing:
        yield _differs(pair, f"{listed(differing)} differ; the drafts' KV is the same", "info")
    else:
        yield pair.held("speculative", f"{_named(pair.prefill)} on both sides")


def _differs(pair: Pair, what: str, severity: Severity) -> Outcome:
    return pair.finding("PD1015", pair.evidence("speculative"), severity, what=what)


def _named(manifest: Manifest) -> str:
    settings = manifest.speculative or {}
    return str(settings.get("algorithm") or settings.get("method") or "draft layers")


def _settings_that_differ(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*prefill, *decode} if prefill.get(key) != decode.get(key))
