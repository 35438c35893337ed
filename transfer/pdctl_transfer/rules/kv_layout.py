"""PD1003: the bytes of a KV page must be in one order on both sides, judged only where both state theirs."""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair


def check_kv_layout(pair: Pair) -> Iterator[Outcome]:
    """Equal where stated."""
    prefill, decode = pair.prefill.kv_layout, pair.decode.kv_layout
    if prefill is None or decode is None:
        silent = (
            "neither side states" if prefill is decode else f"{'prefill' if prefill is None else 'decode'} states no"
        )
        yield pair.skipped("kv_layout", f"{silent} one" if prefill is decode else f"{silent} layout")
    elif prefill == decode:
        yield pair.held("kv_layout", f"{prefill} on both sides")
    else:
        yield pair.finding("PD1003", pair.evidence("kv_layout"), prefill=prefill, decode=decode)
