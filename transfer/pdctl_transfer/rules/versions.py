"""PD1014: one engine and one transfer library of one version on both sides.

Two engines have no protocol in common. The hash of vLLM's NIXL connectors covers its version, so two versions of it
refuse each other at the handshake; SGLang says to upgrade both servers together and checks nothing, and vLLM's Mooncake
connector does not look. Unknown versions are skipped.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.contracts import compares
from pdctl_transfer.rules.outcome import Outcome, Severity
from pdctl_transfer.rules.pair import Pair


def check_versions(pair: Pair) -> Iterator[Outcome]:
    """Engine names, engine versions, transfer library versions."""
    prefill, decode = pair.prefill, pair.decode
    if prefill.engine.name != decode.engine.name:
        what = f"{prefill.engine.name} on prefill, {decode.engine.name} on decode: they share no protocol"
        yield pair.finding("PD1014", pair.evidence("engine"), "error", what=what)
        return
    name = prefill.engine.name
    severity: Severity = "error" if compares(pair, "engine_version") else "warning"
    yield from _compare(pair, "engine_version", name, prefill.engine.version, decode.engine.version, severity)
    if prefill.transfer.backend == decode.transfer.backend:
        name = prefill.transfer.backend
        yield from _compare(
            pair, "transfer_version", name, prefill.transfer.version, decode.transfer.version, "warning"
        )


def _compare(
    pair: Pair, rule: str, name: str, prefill: str | None, decode: str | None, severity: Severity
) -> Iterator[Outcome]:
    if prefill is None or decode is None:
        side = (
            "neither side states"
            if prefill is decode
            else ("prefill" if prefill is None else "decode") + " does not state"
        )
        yield pair.skipped(rule, f"{side} its {name} version")
    elif prefill == decode:
        yield pair.held(rule, f"{name} {prefill} on both sides")
    else:
        refuses = "; its handshake refuses another version" if severity == "error" else ""
        what = f"{name} {prefill} on prefill, {decode} on decode{refuses}"
        yield pair.finding("PD1014", pair.evidence(rule), severity, what=what)
