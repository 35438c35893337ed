"""PD1051: what a compressor has not finished must have one size on both sides.

DeepSeek-V4 on SGLang keeps the tokens of a group that is not complete yet. Speculation widens the ring of the small
ratio from 8 to 16 tokens in each page of the window; `SGLANG_OPT_USE_ONLINE_COMPRESS` keeps a running sum in place of
the large ratio's tokens. Prefill's length is the stride on both sides (0.5.12 mooncake/conn.py:650, nixl/conn.py:1429;
0.5.23 mooncake/conn.py:1189, nixl/conn.py:2263), so what it sends lands in the states of other pages and requests.
Later releases compare and fail every request: mooncake since 0.5.22 (`_state_stride_mismatch`), nixl since 0.5.23
(`_plan_prepared_state_component`).
"""

from collections.abc import Iterator

from pdctl_transfer.rules.item_lengths import is_compressor, shape, unlike_pairs
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, listed
from pdctl_transfer.rules.speculative import speculates


def check_compressors(pair: Pair) -> Iterator[Outcome]:
    """One finding for all states that differ; a note where there are such states and all are alike."""
    found = [entries for entries in unlike_pairs(pair) if is_compressor(entries)]
    if not found:
        if any(is_compressor(entries) for entries in pair.pairing.pairs):
            yield pair.held("compressors", "a compressor's unfinished groups have one size on both sides")
        return
    src, dst = found[0].src.entry, found[0].dst.entry
    states = listed(dict.fromkeys(f"{one.src.kind} {one.src.entry.tensor}" for one in found))
    cause = speculates(pair.prefill) != speculates(pair.decode)
    evidence = [
        *(pair.evidence("speculative") if cause else ()),
        pair.prefill_side.said(shape(src)),
        pair.decode_side.said(shape(dst)),
    ]
    what = f"{states}: {src.item_len} bytes an item on prefill, {dst.item_len} on decode"
    yield pair.finding("PD1051", evidence, what=what)
