"""SGLang with the core inside, real engines on CPU, float32: over each pair the aggregate engine's tokens."""

from collections.abc import Sequence

import pytest

from pdctl.engines.alike import NONE
from tests.engines import core_pairs
from tests.engines.core_pairs import AT_ONCE, TOKENS, Pair, Tokens
from tests.engines.shared import Shared

pytestmark = pytest.mark.engines
EFFORTS = [
    pytest.param(core_pairs.few(), id="few"),
    pytest.param(core_pairs.fifty(), id="fifty", marks=pytest.mark.full),
]
CHOICES = [
    pytest.param(pair, id=str(pair), marks=() if pair.short else pytest.mark.full) for pair in core_pairs.SGLANG_CHOICES
]


@pytest.mark.parametrize("pair", CHOICES)
def test_the_way_is_the_documented_one_and_either_serves(sglang_dense: Shared, pair: Pair) -> None:
    """`auto` takes the core where TP is unequal; a side that has no core, or is told to leave it, the engine's path."""
    assert sglang_dense.unlike((pair.prefill, pair.decode), core_pairs.few(), NONE, TOKENS, AT_ONCE) == []
    if pair.decode != "off":  # which says nothing
        assert sglang_dense.way(pair.prefill, pair.decode) == pair.way


@pytest.mark.parametrize("prompts", EFFORTS)
@pytest.mark.parametrize("pair", core_pairs.SGLANG, ids=str)
def test_tokens_are_the_aggregate_engines(sglang_dense: Shared, pair: Pair, prompts: Sequence[Tokens]) -> None:
    assert sglang_dense.unlike((pair.prefill, pair.decode), prompts, NONE, TOKENS, AT_ONCE) == []
    assert sglang_dense.way(pair.prefill, pair.decode) == pair.way


@pytest.mark.full
def test_prompts_of_several_chunks(sglang_dense: Shared) -> None:
    """Their pages are sent as each chunk is computed, four installments of one request."""
    assert sglang_dense.unlike(("p1", "d2"), core_pairs.chunked(), NONE, TOKENS, 2) == []


@pytest.mark.parametrize("prompts", EFFORTS)
@pytest.mark.parametrize("pair", core_pairs.SGLANG_HYBRID, ids=str)
def test_recurrent_state_brings_the_aggregate_engines_tokens(
    sglang_hybrid: Shared, pair: Pair, prompts: Sequence[Tokens]
) -> None:
    """At unequal TP each half of a convolution's three parts must land in its own rank, as must the heads."""
    assert sglang_hybrid.unlike((pair.prefill, pair.decode), prompts, NONE, TOKENS, AT_ONCE) == []
    assert sglang_hybrid.way(pair.prefill, pair.decode) == pair.way
