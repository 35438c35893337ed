"""PD1015: draft models have KV of their own, which must match where both sides hold it.

Decode alone may speculate: it fills the drafts' KV itself, and published fleets do so (information). Prefill alone may
not: its drafts have nowhere to go. vLLM's compatibility hash covers the speculative settings, so there any difference
is refused at the handshake.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pdctl_transfer.layout.algebra import entries_of, is_draft, num_layers
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.item_lengths import shape, unlike_pairs
from pdctl_transfer.rules.missing import entries_listed
from pdctl_transfer.rules.outcome import Outcome, Severity
from pdctl_transfer.rules.pair import Pair, listed

#: Engines that refuse a peer with other speculative settings.
STRICT = frozenset({"vllm"})


def check_speculative(pair: Pair) -> Iterator[Outcome]:
    """Who speculates; then the drafts' entries; then the settings, which may differ."""
    prefill, decode = speculates(pair.prefill), speculates(pair.decode)
    if not prefill and not decode:
        yield pair.held("speculative", "neither side speculates")
    elif not prefill:
        yield _differs(pair, f"only decode speculates ({_named(pair.decode)}); it fills the drafts' KV itself", "info")
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
    if pair.engines & STRICT:
        return pair.finding(
            "PD1015", pair.evidence("speculative"), "error", what=f"{what}; vLLM's handshake refuses that"
        )
    return pair.finding("PD1015", pair.evidence("speculative"), severity, what=what)


def _named(manifest: Manifest) -> str:
    settings = manifest.speculative or {}
    return str(settings.get("algorithm") or settings.get("method") or "draft layers")


def _settings_that_differ(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {*prefill, *decode} if prefill.get(key) != decode.get(key))
