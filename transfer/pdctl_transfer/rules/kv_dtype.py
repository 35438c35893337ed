"""PD1002: the KV cache dtypes must be equal, as the strings that the engines compare.

Bytes are moved, never converted. `auto` and `bfloat16` may be the same bytes, but SGLang compares the strings and
refuses them, as the hash of vLLM's NIXL connectors does, so they are refused here. vLLM's Mooncake connector compares
no types: over it two words of one type are one.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.contracts import compares
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, setting

#: vLLM's words for one KV type.
ALIASES: Final = {"fp8": "fp8_e4m3"}


def check_kv_dtype(pair: Pair) -> Iterator[Outcome]:
    """Equal strings."""
    prefill, decode = pair.prefill.kv_cache_dtype, pair.decode.kv_cache_dtype
    if prefill == decode:
        yield pair.held("kv_dtype", f"{prefill} on both sides")
    elif pair.engines == {"vllm"} and not compares(pair, "kv_cache_dtype") and len(_types(pair)) == 1:
        yield pair.held(
            "kv_dtype", f"{prefill} on prefill, {decode} on decode: one type, which nobody compares by name"
        )
    else:
        yield pair.finding("PD1002", pair.evidence("kv_cache_dtype"), prefill=prefill, decode=decode)


def _types(pair: Pair) -> set[object]:
    """The types behind both words; `auto` is the model's own, and itself where that is not stated."""
    return {_type(side.manifest) for _, side in pair.sides}


def _type(manifest: Manifest) -> object:
    word = manifest.kv_cache_dtype
    return (setting(manifest, "dtype") or word) if word == "auto" else ALIASES.get(word, word)
