"""vLLM with the core inside, real engines on CPU: over each pair the aggregate engine's tokens."""

from collections.abc import Sequence

import pytest

from pdctl.engines.alike import NONE
from tests.engines import core_pairs, core_pools
from tests.engines.core_pairs import AT_ONCE, TOKENS, Pair, Tokens
from tests.engines.shared import Shared

pytestmark = pytest.mark.engines
EFFORTS = [
    pytest.param(core_pairs.few(), id="few"),
    pytest.param(core_pairs.fifty(), id="fifty", marks=pytest.mark.full),
]
CHOICES = [
    pytest.param(pair, id=str(pair), marks=() if pair.short else pytest.mark.full) for pair in core_pairs.VLLM_CHOICES
]


@pytest.mark.parametrize("prompts", EFFORTS)
@pytest.mark.parametrize("pair", core_pairs.VLLM, ids=str)
def test_tokens_are_the_aggregate_engines(vllm_dense: Shared, pair: Pair, prompts: Sequence[Tokens]) -> None:
    assert vllm_dense.unlike((pair.prefill, pair.decode), prompts, NONE, TOKENS, AT_ONCE) == []
    assert vllm_dense.way(pair.prefill, pair.decode) == pair.way


@pytest.mark.parametrize("pair", CHOICES)
def test_without_the_plugin_nixl_serves(vllm_dense: Shared, pair: Pair) -> None:
    assert vllm_dense.unlike((pair.prefill, pair.decode), core_pairs.few(), NONE, TOKENS, AT_ONCE) == []


@pytest.mark.parametrize("prompts", EFFORTS)
@pytest.mark.parametrize("pair", core_pairs.VLLM_HYBRID, ids=str)
def test_recurrent_state_brings_the_aggregate_engines_tokens(
    vllm_hybrid: Shared, pair: Pair, prompts: Sequence[Tokens]
) -> None:
    """Within the noise of bfloat16, which the engine is measured to have against itself."""
    short = [prompt for prompt in prompts if len(prompt) < core_pools.HYBRID_LONGEST - TOKENS]
    noise = vllm_hybrid.noise(core_pairs.few(), TOKENS)
    assert vllm_hybrid.unlike((pair.prefill, pair.decode), short, noise, TOKENS, AT_ONCE) == []
    assert vllm_hybrid.way(pair.prefill, pair.decode) == pair.way
