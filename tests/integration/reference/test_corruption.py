"""Each kind of state that moves is needed: damage one piece in flight, and the output is another.

So whoever forgets to move a piece, or moves it wrong, cannot get the right tokens by luck.
"""

from dataclasses import replace

import pytest

from pdctl.engines.reference.pools import Key
from pdctl.engines.reference.sampling import Sampling
from pdctl_transfer.layout.manifest import NGRAM_LAYER, ROPE_RING_LAYER
from pdctl_transfer.session import Options
from tests.integration.reference.corruption import Damage, DamagingFabric, damaging
from tests.integration.reference.harness import ALONE, alone, pair, prompts, result, start

# 76 tokens: five pages, and twelve rows of the ring in use.
PROMPT = prompts(1, 76)[0]
SAMPLING = Sampling(max_new_tokens=64, temperature=0, ignore_eos=True)
UNCHECKED = Options(verify="none")

PIECES = {
    "one head of one K": Damage(Key(3, "k"), units=slice(1, 2)),
    "one head of one V": Damage(Key(7, "v"), units=slice(0, 1)),
    "the q part of one conv state": Damage(Key(1, "conv"), units=slice(0, 64)),
    "the k part of one conv state": Damage(Key(1, "conv"), units=slice(64, 128)),
    "the v part of one conv state": Damage(Key(6, "conv"), units=slice(128, 256)),
    "one temporal state": Damage(Key(5, "temporal")),
    "one head of a temporal state": Damage(Key(0, "temporal"), units=slice(3, 4)),
    "one row of the pending ring": Damage(Key(7, "pending_k"), rows=slice(1, 2)),
    "one row of the position ring": Damage(Key(ROPE_RING_LAYER, "rope_position"), rows=slice(1, 2), bit=6),
    "the compressed pages": Damage(Key(7, "compressed_k")),
    "one short-conv state": Damage(Key(1, "ple_short_conv")),
    "one n-gram id": Damage(Key(NGRAM_LAYER, "ple_ngram"), units=slice(1, 2)),
}


@pytest.fixture(scope="module")
def expected() -> tuple[object, ...]:
    with alone() as engine:
        return result(start(engine, PROMPT, SAMPLING).wait())


def test_undamaged_state_gives_the_aggregate_engines_output(expected: tuple[object, ...]) -> None:
    with pair(session=UNCHECKED) as both:
        [request] = both.run([PROMPT], SAMPLING)
        assert result(request) == expected
        assert request.computed == 0
        assert both.decode.counts.prompt_tokens_computed == 0


@pytest.mark.parametrize("piece", PIECES)
def test_damaged_state_changes_the_output(piece: str, expected: tuple[object, ...]) -> None:
    made: list[DamagingFabric] = []
    with pair(session=UNCHECKED, prefill_fabric=damaging(PIECES[piece], made)) as both:
        [request] = both.run([PROMPT], SAMPLING)
    assert made[0].damaged > 0
    assert request.failure is None
    assert result(request) != expected


@pytest.mark.parametrize("tensor", ["k", "v", "pending_k", "compressed_k"])
def test_damaged_draft_state_changes_what_the_draft_proposes(tensor: str) -> None:
    """Never the tokens: those are the model's own."""
    drafting = replace(ALONE, draft=True)
    made: list[DamagingFabric] = []
    with alone(drafting) as engine:
        wanted = start(engine, PROMPT, SAMPLING).wait()
    damage = damaging(Damage(Key(8, tensor)), made)
    with pair(drafting, drafting, session=UNCHECKED, prefill_fabric=damage) as both:
        [request] = both.run([PROMPT], SAMPLING)
    assert request.output == wanted.output
    assert request.proposals != wanted.proposals


def test_a_full_checksum_turns_damage_into_a_coded_failure_on_both_sides() -> None:
    made: list[DamagingFabric] = []
    damage = damaging(PIECES["one n-gram id"], made)
    with pair(session=Options(verify="full"), prefill_fabric=damage) as both:
        prefill, decode = both.start(PROMPT, SAMPLING)
        failures = decode.wait().failure, prefill.wait().failure
    assert all(failure is not None and failure.code.startswith("PD4") for failure in failures)
    assert decode.request.output == []
