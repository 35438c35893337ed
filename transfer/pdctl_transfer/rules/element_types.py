"""PD1035, PD1037: the elements behind equal bytes must be of one type.

`auto` on both sides is one word, and two types where `--dtype` differs: bits of float16 are then read as bfloat16.
SGLang compares the word alone (common/conn.py:1328), so nothing stops it there; vLLM's NIXL handshake refuses.
A 16-bit KV type that is not the model's own is a reinterpretation within each engine.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.contracts import compares
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, setting

#: Words for one type.
ALIASES: Final = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}
SIXTEEN: Final = frozenset({"float16", "bfloat16"})


def check_element_types(pair: Pair) -> Iterator[Outcome]:
    """The model's own type where something is stored in it, and the type of recurrent states."""
    for name, stored in (("dtype", _stores_own(pair)), ("state_dtype", True)):
        prefill, decode = _word(pair.prefill, name), _word(pair.decode, name)
        if prefill is None or decode is None:
            if prefill != decode:
                side = "prefill" if prefill is None else "decode"
                yield pair.skipped(name, f"{side} does not state its element type")
        elif prefill == decode:
            yield pair.held(name, f"{prefill} on both sides")
        elif stored or compares(pair, name):
            yield pair.finding("PD1035", pair.evidence(name), what=f"{prefill} on prefill, {decode} on decode")
        else:
            what = f"{prefill} on prefill, {decode} on decode, but nothing that travels is stored in it"
            yield pair.finding("PD1035", pair.evidence(name), "info", what=what)
    yield from _own(pair)


def _own(pair: Pair) -> Iterator[Outcome]:
    """A KV type of 16 bits beside a model of another."""
    for role, side in pair.sides:
        kv = side.manifest.kv_cache_dtype
        kv, model = ALIASES.get(kv, kv), _word(side.manifest, "dtype")
        if kv in SIXTEEN and model in SIXTEEN and kv != model:
            evidence = (side.evidence("kv_cache_dtype"), side.evidence("dtype"))
            yield pair.finding("PD1037", evidence, side=role, kv=kv, model=model)


def _stores_own(pair: Pair) -> bool:
    """Whether KV has the model's own type on either side, or there is state that has it whatever the KV's is."""
    kinds = {part.kind for part in components(pair.prefill, pair.decode) if part.entries}
    return "mamba" in kinds or any(side.manifest.kv_cache_dtype == "auto" for _, side in pair.sides)


def _word(manifest: Manifest, name: str) -> str | None:
    word = setting(manifest, name)
    return ALIASES.get(word, word) if isinstance(word, str) else None
