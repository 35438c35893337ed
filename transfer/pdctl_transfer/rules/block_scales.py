"""PD1020: SGLang registers the pages of a four-bit KV cache for a transfer, and not their block scales.

Its pool lists K and V alone (0.5.23, mem_cache/memory_pool.py:2773), and scales become a component of their own for
MXFP8 only (disaggregation/utils.py:1503). Both engines start, and decode reads pages beside scales of its own.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair

FOUR_BITS: Final = frozenset({"nvfp4", "fp4_mx_block16"})


def check_block_scales(pair: Pair) -> Iterator[Outcome]:
    """Nothing for a type whose scales, if it has any, are moved."""
    kinds = {side.manifest.kv_cache_dtype for _, side in pair.sides if side.manifest.engine.name == "sglang"}
    if not (named := sorted(FOUR_BITS & kinds)):
        return
    what = f"KV of type {named[0]}: SGLang moves its pages without their block scales, so decode reads other numbers"
    yield pair.finding("PD1020", pair.evidence("kv_cache_dtype"), what=what)
