"""PD1013, PD1038: both sides must serve one model, and compute the same numbers with it.

Told by the digest of the config's geometry; where one side has none, by the names, of which only the last part counts:
the same model may lie under another folder on another host. Weights are not compared, nothing static knows them: one
geometry under two names (a model and its fine-tune, or one model in two folders) is worth a note. A second digest,
where both sides state one, tells configs apart that shape equal buffers and fill them otherwise: rotary base, scaling,
softcap.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.algebra import num_layers
from pdctl_transfer.rules.contracts import compares
from pdctl_transfer.rules.outcome import Finding, Outcome
from pdctl_transfer.rules.pair import Pair, field_value


def check_model(pair: Pair) -> Iterator[Outcome]:
    """Equal digests, or equal names and families where there is no digest to compare."""
    prefill, decode = pair.prefill.model, pair.decode.model
    renamed = _last(prefill.name) != _last(decode.name)
    if prefill.config_digest and decode.config_digest:
        if prefill.config_digest != decode.config_digest:
            what = f"the configs of {prefill.name} and {decode.name} have different geometry"
            yield pair.finding("PD1013", pair.evidence("model", "config_digest"), what=what)
        elif renamed:
            by_path = compares(pair, "model")
            why = "vLLM's NIXL handshake compares paths" if by_path else "whether the weights are the same is not known"
            what = f"one geometry under two names, {prefill.name} and {decode.name}; {why}"
            yield pair.finding("PD1013", pair.evidence("model"), "warning" if by_path else "info", what=what)
        else:
            yield pair.held("model", f"one config digest, {prefill.config_digest[:18]}")
    elif renamed:
        what = f"{prefill.name} on prefill, {decode.name} on decode"
        yield pair.finding("PD1013", pair.evidence("model"), what=what)
    elif prefill.family and decode.family and prefill.family != decode.family:
        what = f"{prefill.name} is {prefill.family} on prefill, {decode.family} on decode"
        yield pair.finding("PD1013", pair.evidence("family"), what=what)
    else:
        yield pair.held("model", f"{_last(prefill.name)} by name; no digest to compare")


def check_values(pair: Pair) -> Iterator[Outcome]:
    """PD1038: equal digests of the rest of the config, where the geometry is one: else equal bytes, other numbers."""
    prefill, decode = field_value(pair.prefill, "values_digest"), field_value(pair.decode, "values_digest")
    if None in (prefill, decode) or pair.prefill.model.config_digest != pair.decode.model.config_digest:
        return
    if prefill == decode:
        yield pair.held("values", f"one digest of all else in the config, {str(prefill)[:18]}")
    else:
        yield pair.finding("PD1038", pair.evidence("values_digest"), what="the rest of the configs is not one")


def check_depth(pair: Pair) -> Iterator[Outcome]:
    """Equal numbers of layers, where nothing else has told the models apart: drafts are numbered from there on."""
    prefill, decode = num_layers(pair.prefill), num_layers(pair.decode)
    if prefill != decode and not any(isinstance(outcome, Finding) for outcome in check_model(pair)):
        evidence = (
            pair.prefill_side.said(f"stages end at layer {prefill}"),
            pair.decode_side.said(f"stages end at layer {decode}"),
        )
        what = f"prefill computes {prefill} layers, decode {decode}"
        yield pair.finding("PD1013", evidence, what=what)


def _last(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]
