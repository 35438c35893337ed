"""The judgement of two answers: noise passes however it falls, wrong state does not, and doubt is said."""

import math
from collections.abc import Sequence

import pytest

from pdctl.engines.alike import NONE, ROUNDING, SAME, Noise, compare, judge, measured, noise_of
from pdctl.engines.answer import Answer, Step
from tests.unit.engines.answering import LENGTH, PROMPT, Model


def noisy(level: float, seed: int = 0) -> Noise:
    model = Model(level, seed)
    return noise_of([model.answer()], model.answer)


# ---- what passes ----


def test_equal_answers_are_equal() -> None:
    verdict = judge(compare(Model().answer(), Model().answer()), NONE)
    assert verdict.kind == "equal"


def test_single_precision_is_no_difference() -> None:
    assert judge(compare(Model(1e-6, 1).answer(), Model(1e-6, 2).answer()), NONE).kind == "equal"


@pytest.mark.parametrize("level", [0.02, 0.06, 0.2])
def test_an_engines_own_noise_is_told_from_a_fault(level: float) -> None:
    """In all of many runs, and in some of them other tokens come."""
    noise, others = noisy(level), 0
    for seed in range(200):
        found = compare(Model(level, 1000 + seed).answer(), Model(level, 2000 + seed).answer())
        others += found.first is not None
        assert judge(found, noise).kind == "noise", seed
    assert others


def test_rounding_is_allowed_before_anything_was_measured() -> None:
    for seed in range(50):
        found = compare(Model(0.03, seed).answer(), Model(0.03, 100 + seed).answer())
        assert judge(found, ROUNDING).kind == "noise", seed


def test_other_tokens_pass_only_where_two_were_almost_as_likely() -> None:
    near = compare(
        Answer("", (Step(1, "1", {"1": -1.0, "2": -1.05}), Step(5, "5", {"5": -0.1}))),
        Answer("", (Step(2, "2", {"2": -1.0, "1": -1.05}), Step(6, "6", {"6": -3.0}))),
    )
    assert near.first == 0
    assert near.margin == pytest.approx(0.05)
    verdict = judge(near, ROUNDING)
    assert verdict.kind == "noise"
    assert "other tokens from number 1 on, where the two were 0.05 apart" in verdict.words
    far = compare(
        Answer("", (Step(1, "1", {"1": -0.5, "2": -2.0}),)), Answer("", (Step(2, "2", {"2": -0.5, "1": -2.0}),))
    )
    assert judge(far, ROUNDING).kind == "wrong"


# ---- what does not ----


@pytest.mark.parametrize(("level", "missed"), [(0.0, 0), (0.02, 0), (0.06, 0), (0.2, 4)])
def test_another_requests_state_is_wrong(level: float, missed: int) -> None:
    """In all of 200 states; under a noise as large as 0.2 few first tokens agree by chance."""
    noise = noisy(level)
    kinds = [
        judge(compare(Model(level, state).answer(), Model(level, 0, state).answer()), noise).kind
        for state in range(1, 201)
    ]
    assert kinds.count("wrong") >= 200 - missed


def planted(answer: Answer, by: float, at: Sequence[int]) -> Answer:
    """The same tokens, with their logprobs moved at some places."""
    steps = [
        step._replace(likely={word: value - by for word, value in step.likely.items()}) if index in at else step
        for index, step in enumerate(answer.steps)
    ]
    return Answer("", tuple(steps), answer.prompt)


def test_equal_tokens_with_other_logprobs_are_wrong() -> None:
    ours, theirs = Model(0.06, 1).answer(), Model(0.06, 1).answer()
    noise = noisy(0.06)
    assert judge(compare(planted(ours, 0.45, range(LENGTH)), theirs), noise).kind == "wrong"
    assert judge(compare(planted(ours, 1.5, [9]), theirs), noise).kind == "wrong"
    assert judge(compare(planted(ours, 0.01, [9]), theirs), NONE).kind == "wrong"


def test_a_token_that_the_other_side_never_thought_of_is_wrong() -> None:
    """It is not among the other's best, so it is at least as far from where it should be as the last of those."""
    ours = Answer("", (Step(9, "9", {"9": -0.2, "8": -4.0}),))
    theirs = Answer("", (Step(1, "1", {"1": -1.0, "2": -1.01, "3": -3.5}),))
    found = compare(ours, theirs)
    assert found.known
    assert found.shifts == (pytest.approx(3.3),)
    assert judge(found, ROUNDING).kind == "wrong"


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_number_is_wrong(value: float) -> None:
    likely = {"1": -1.0, "2": -2.0, "3": -3.0}
    ours, theirs = (Answer("", (Step(1, "1", one), Step(1, "1", likely))) for one in (likely | {"2": value}, likely))
    for found in (compare(ours, theirs), compare(theirs, ours)):
        assert judge(found, ROUNDING).kind == "wrong"


def test_an_exact_engine_has_no_noise() -> None:
    tie = {"1": -1.0, "2": -1.0}
    assert judge(compare(Answer("", (Step(1, "1", tie),)), Answer("", (Step(2, "2", tie),))), NONE).kind == "wrong"
    assert judge(compare(Model(0.02, 1).answer(), Model(0.02, 2).answer()), NONE).kind == "wrong"


def test_an_engine_that_contradicts_itself_is_no_yardstick() -> None:
    """Its noise would allow anything."""
    wild = Model()

    def ask(prompt: Sequence[int], tokens: int) -> Answer:
        wild.state += 1
        return wild.answer(prompt, tokens)

    assert noise_of([wild.answer()], ask) is ROUNDING
    assert measured([math.nan]) is ROUNDING
    assert measured([math.inf, 0.1]) is ROUNDING


# ---- what cannot be told ----


def bare(*tokens: int) -> Answer:
    return Answer("", tuple(map(Step, tokens)))


def test_without_logprobs_only_equal_tokens_can_be_told() -> None:
    assert judge(compare(bare(1, 2), bare(1, 2)), ROUNDING).kind == "equal"
    verdict = judge(compare(bare(1, 2), bare(1, 3)), ROUNDING)
    assert verdict.kind == "untold"
    assert "other tokens from number 2 on" in verdict.words
    assert judge(compare(bare(1, 2), bare(1, 3)), NONE).kind == "wrong"


def test_an_answer_that_ends_early_is_not_equal() -> None:
    found = compare(Model().answer(length=4), Model().answer(length=5))
    assert found.first == 4
    assert judge(found, NONE).kind == "wrong"
    assert judge(found, ROUNDING).kind == "untold"


def test_words_of_several_tokens_are_not_compared() -> None:
    """Pieces of characters and special tokens are all shown alike: only a token that both chose is sure."""
    ours = Answer("", (Step(300, "", {"": -1.0, "\ufffd": -1.5, "a": -2.0}),))
    theirs = Answer("", (Step(300, "", {"": -1.0, "\ufffd": -9.0, "a": -2.0}),))
    assert compare(ours, theirs).shifts == (0.0,)
    other = Answer("", (Step(301, "", {"": -1.4, "a": -2.0}),))
    found = compare(ours, other)
    assert found.shifts == (0.0,)  # of "a"
    assert found.margin is None


# ---- an engine's noise ----


def test_noise_is_measured_on_the_same_text_in_another_order() -> None:
    asked: list[tuple[tuple[int, ...], int]] = []
    model = Model(0.05, 3)

    def ask(prompt: Sequence[int], tokens: int) -> Answer:
        asked.append((tuple(prompt), tokens))
        return model.answer(prompt, tokens)

    answer = model.answer()
    noise = noise_of([answer], ask)
    assert sorted(asked, key=lambda one: -one[1]) == [
        ((*PROMPT, *answer.tokens[:taken]), LENGTH - taken) for taken in (1, LENGTH // 4, LENGTH // 2)
    ]
    assert noise.source == "from itself"
    assert 0.1 < noise.largest < 0.5
    assert 0.03 < noise.mean < 0.2


def test_noise_is_never_below_rounding() -> None:
    """Nor is it zero for an engine that computes alike in any order: other layouts of ranks add in another."""
    assert noise_of([Model().answer()], Model().answer) is ROUNDING


def test_without_token_ids_there_is_nothing_to_measure() -> None:
    def ask(prompt: Sequence[int], tokens: int) -> Answer:
        raise AssertionError("asked without ids")

    texts = Answer("ab", (Step("a", "a", {"a": -1.0}),), PROMPT)
    unknown = Answer("ab", (Step(1, "a", {"a": -1.0}),))
    assert noise_of([texts, unknown], ask) is ROUNDING


def test_the_floor_is_far_below_what_wrong_state_does() -> None:
    assert SAME < ROUNDING.mean < ROUNDING.largest < 0.2
