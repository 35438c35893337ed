"""PD1001, PD1020: both sides must cut the KV cache into pages of one size.

Page ids are exchanged, sizes are not: with unequal pages the same id means different tokens. SGLang 0.5.23 finds out at
the first request, and its decode engine dies of it. vLLM 0.32.0 takes a decode block that is a multiple of the prefill
block (128 → 256) and answers every prompt wrongly; any other inequality it refuses at the handshake.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair


def check_page_size(pair: Pair) -> Iterator[Outcome]:
    """Equal, whatever the engine."""
    prefill, decode = pair.prefill.page_size, pair.decode.page_size
    if prefill == decode:
        yield pair.held("page_size", f"{prefill} on both sides")
    elif "vllm" in pair.engines and not pair.by_core and prefill >= 1 and decode % prefill == 0:
        what = (
            f"block size {prefill} on prefill, {decode} on decode: vLLM accepts a multiple and reads the wrong tokens"
        )
        yield pair.finding("PD1020", pair.evidence("page_size"), what=what)
    else:
        yield pair.finding("PD1001", pair.evidence("page_size"), prefill=prefill, decode=decode)
