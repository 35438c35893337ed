"""PD1022: both sides must name one transfer backend."""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, backend_name


def check_backends(pair: Pair) -> Iterator[Outcome]:
    """Equal, unless the pair is judged for another backend anyway."""
    prefill, decode = pair.prefill.transfer.backend, pair.decode.transfer.backend
    if pair.judged_backend:
        yield pair.held("backends", f"judged for {pair.backend}")
    elif backend_name(prefill) == backend_name(decode):
        yield pair.held("backends", f"{prefill} on both sides")
    else:
        yield pair.finding("PD1022", pair.evidence("backend"), prefill=prefill, decode=decode)
