"""What the engine computes: the same however it is cut, and of every piece of state that it keeps."""

from dataclasses import replace

import pytest

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.pools import Key
from pdctl.engines.reference.request import Request
from tests.integration.reference.harness import prompts
from tests.unit.reference.steps import SMALL, finished, prefilled, run

PROMPT = prompts(1, 91)[0]
HYBRID = [buffer.key for stage in Engine(SMALL).groups[0].pools for buffer in stage[0].buffers]
LATENT = [Key(3, "latent"), Key(3, "latent", 1), Key(0, "conv"), Key(4, "temporal")]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(SMALL)


@pytest.fixture(scope="module")
def whole(engine: Engine) -> Request:
    return run(engine, PROMPT, 24)


def test_the_same_prompt_gives_the_same_bits_in_another_place(engine: Engine, whole: Request) -> None:
    """Fails if a result depends on page, slot or row ids, or on what their last user left there."""
    run(engine, prompts(1, 300, seed=3)[0])
    again = run(engine, PROMPT, 24)
    assert (again.output, again.logprobs) == (whole.output, whole.logprobs)


def test_companions_change_no_bit(engine: Engine, whole: Request) -> None:
    """Fails if a step looks beyond its own request."""
    mine = prefilled(engine, PROMPT, 24)
    other = prefilled(engine, prompts(1, 130, seed=5)[0], 24)
    while not mine.finish:
        engine.decode(other)
        engine.decode(mine)
    finished(engine, mine)
    finished(engine, other)
    assert (mine.output, mine.logprobs) == (whole.output, whole.logprobs)


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (1, 2), (4, 2), (2, 3)])
def test_ranks_and_stages_compute_what_one_rank_computes(whole: Request, tp: int, pp: int) -> None:
    cut = run(Engine(replace(SMALL, tp=tp, pp=pp)), PROMPT, 24)
    assert cut.output == whole.output
    assert max(abs(a - b) for a, b in zip(cut.logprobs, whole.logprobs, strict=True)) < 1e-9


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 2)])
def test_a_latent_model_is_the_same_on_any_ranks(tp: int, pp: int) -> None:
    """KDA's conv state lies row by row, and the latent is on every rank."""
    options = replace(SMALL, model="builtin:tiny-mla")
    one, cut = run(Engine(options), PROMPT, 24), run(Engine(replace(options, tp=tp, pp=pp)), PROMPT, 24)
    assert cut.output == one.output
    assert max(abs(a - b) for a, b in zip(cut.logprobs, one.logprobs, strict=True)) < 1e-9


def test_page_size_changes_only_where_things_lie(whole: Request) -> None:
    assert run(Engine(replace(SMALL, page_size=32)), PROMPT, 24).output == whole.output


def test_float32_is_the_same_model_rounded(whole: Request) -> None:
    rounded = run(Engine(replace(SMALL, dtype="float32")), PROMPT, 4)
    assert abs(rounded.logprobs[0] - whole.logprobs[0]) < 1e-4


@pytest.mark.parametrize("key", HYBRID, ids=lambda key: f"{key.layer}-{key.tensor}")
def test_every_buffer_bears_on_the_output(engine: Engine, whole: Request, key: Key) -> None:
    """Fails if the engine keeps, and a transfer moves, something that nothing reads."""
    assert disturbed(engine, key).logprobs != whole.logprobs[:8]


@pytest.mark.parametrize("key", LATENT, ids=lambda key: f"{key.layer}-{key.tensor}-{key.part}")
def test_every_latent_buffer_bears_on_the_output(key: Key) -> None:
    engine = Engine(replace(SMALL, model="builtin:tiny-mla"))
    assert disturbed(engine, key).logprobs != run(engine, PROMPT).logprobs


def disturbed(engine: Engine, key: Key) -> Request:
    """Decode after one buffer was changed behind the engine's back."""
    request = prefilled(engine, PROMPT)
    buffer = engine.groups[0].pools[0][0][key]
    kept = buffer.clone()
    if buffer.dtype.is_floating_point:
        buffer.mul_(2)
    else:
        buffer.add_(1)
    finished(engine, request)
    buffer.copy_(kept)
    return request


def test_prefill_counts_what_it_computes(engine: Engine) -> None:
    request = prefilled(engine, PROMPT)
    assert (request.computed, request.done) == (91, 91)
    finished(engine, request)


@pytest.mark.parametrize("draft", [False, True])
def test_a_reused_prefix_leaves_the_state_of_a_computed_one(draft: bool) -> None:
    """Fails if the ring, a recurrent state or a draft's entry is that of the prompt that was there before."""
    options = replace(SMALL, draft=draft, tp=2, pp=2)
    fresh, reusing = Engine(options), Engine(replace(options, prefix_tokens=512))
    shared = prompts(1, 128, seed=9)[0]
    run(reusing, shared + prompts(1, 40, seed=10)[0])
    run(fresh, shared)
    prompt = shared + prompts(1, 45, seed=11)[0]
    request, wanted = run(reusing, prompt, 24), run(fresh, prompt, 24)
    assert (request.cached, request.computed, wanted.computed) == (128, 45, 173)
    assert (request.output, request.proposals) == (wanted.output, wanted.proposals)
    assert max(abs(a - b) for a, b in zip(request.logprobs, wanted.logprobs, strict=True)) < 1e-9


def test_a_whole_prompt_that_is_known_still_computes_its_last_chunk() -> None:
    engine = Engine(replace(SMALL, prefix_tokens=512))
    prompt = prompts(1, 128, seed=9)[0]
    first, again = run(engine, prompt), run(engine, prompt)
    assert (again.cached, again.computed) == (64, 64)
    assert again.output == first.output


def test_the_prefix_cache_is_bounded() -> None:
    engine = Engine(replace(SMALL, prefix_tokens=128))
    prompt = prompts(1, 200, seed=9)[0]
    run(engine, prompt)
    assert len(engine.groups[0].prefixes._kept) == 2


def test_prefixes_are_cut_at_whole_pages() -> None:
    """Fails where a page is larger than a chunk, and a part of it would be taken for the whole."""
    options = replace(SMALL, page_size=128, max_total_tokens=2048)
    engine = Engine(replace(options, prefix_tokens=512))
    prompt = prompts(1, 200, seed=9)[0]
    run(engine, prompt)
    again = run(engine, prompt)
    assert again.cached == 128
    assert again.output == run(Engine(options), prompt).output
