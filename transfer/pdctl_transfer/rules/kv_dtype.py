"""PD1002: the KV cache dtypes must be equal, as the strings that the engines compare.

Bytes are moved, never converted. `auto` and `bfloat16` may be the same bytes, but SGLang compares the strings and
refuses them, so they are refused here.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair


def check_kv_dtype(pair: Pair) -> Iterator[Outcome]:
    """Equal strings."""
    prefill, decode = pair.prefill.kv_cache_dtype, pair.decode.kv_cache_dtype
    if prefill == decode:
        yield pair.held("kv_dtype", f"{prefill} on both sides")
    else:
        yield pair.finding("PD1002", pair.evidence("kv_cache_dtype"), prefill=prefill, decode=decode)
