"""PD1029: the backend's send path must know the kind of state at all.

Read in SGLang 0.5.23: mori dispatches on a list of kinds and raises for any other at the first request; mooncake and
nixl have a path for every kind that SGLang registers. A warning, because it was read and not run. Across unequal
attention TP the same kinds are PD1005's "not established".
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed

MORI: Final = frozenset(
    {
        "kv",
        "mamba",
        "swa",
        "dsa",
        "qsa_pending",
        "qsa_compressed",
        "swa_ring",
        "c128_state",
        "minimax_index_k",
        "minimax_dense_kv",
    }
)


def check_carried(pair: Pair) -> Iterator[Outcome]:
    """Kinds with entries on prefill."""
    if pair.engines != {"sglang"} or pair.backend != "mori" or pair.unequal_tp or pair.by_core:
        return
    kinds = sorted({part.kind for part in components(pair.prefill) if part.entries} - MORI)
    if kinds:
        yield pair.finding("PD1029", pair.backend_evidence(), "warning", states=listed(kinds), backend=pair.backend)
