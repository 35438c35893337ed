"""What engines answer, read: recorded shapes of three engines, with and without ids and logprobs."""

from typing import Any

import pytest

from pdctl.engines.answer import Answer, Step, from_completion, from_generate, request


def completion(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"text": ":K", **choice}]}


def test_vllm_names_tokens_by_their_ids() -> None:
    """Recorded from vLLM 0.32, shortened."""
    logprobs = {
        "tokens": ["token_id:140", "token_id:277"],
        "token_logprobs": [-0.67, -0.14],
        "top_logprobs": [{"token_id:140": -0.67, "token_id:195": -1.74}, {"token_id:277": -0.14}],
    }
    read = from_completion(completion(token_ids=[140, 277], prompt_token_ids=[104, 101], logprobs=logprobs))
    assert read.tokens == (140, 277)
    assert read.prompt == (104, 101)
    assert read.steps[0] == Step(140, "token_id:140", {"token_id:140": -0.67, "token_id:195": -1.74})


def test_sglang_names_tokens_by_their_text() -> None:
    """Recorded from SGLang 0.5.23, shortened: a special token has no text."""
    logprobs = {
        "text_offset": [-1, -1],
        "tokens": [":", ""],
        "token_logprobs": [-2.19, -2.09],
        "top_logprobs": [{":": -2.19, "h": -3.14}, {"": -2.65, "\\": -2.65}],
    }
    read = from_completion(completion(token_ids=[58, 271], prompt_token_ids=[84], logprobs=logprobs))
    assert read.steps[0] == Step(58, ":", {":": -2.19, "h": -3.14})
    assert read.steps[1].likely[""] == -2.09
    assert [step.clear for step in read.steps] == [True, False]


def test_without_ids_the_words_are_the_tokens() -> None:
    read = from_completion(completion(logprobs={"tokens": [":", "K"], "token_logprobs": [-2.0, None]}))
    assert read.steps == (Step(":", ":", {":": -2.0}), Step("K", "K", {}))
    assert read.prompt == ()


@pytest.mark.parametrize("logprobs", [None, {}, {"tokens": [":"], "token_logprobs": [-2.0]}])
def test_without_logprobs_the_ids_remain(logprobs: Any) -> None:
    read = from_completion(completion(token_ids=[58, 75], logprobs=logprobs))
    assert read == Answer(":K", (Step(58), Step(75)))


def test_without_either_the_text_is_one_token() -> None:
    assert from_completion(completion()).tokens == (":K",)
    assert from_completion({"choices": [{"text": ""}]}).tokens == ()


def test_generate_gives_the_tokens_logprobs_alone() -> None:
    meta = {"output_token_logprobs": [[-2.5, 9, "a"], [-0.5, 7, "b"]]}
    read = from_generate({"text": "ab", "output_ids": [9, 7], "meta_info": meta})
    assert read == Answer("ab", (Step(9, "9", {"9": -2.5}), Step(7, "7", {"7": -0.5})))
    assert from_generate({"output_ids": [9], "meta_info": {}}).steps == (Step(9, "9"),)


@pytest.mark.parametrize("body", [None, [], {}, {"choices": []}, {"choices": [{}]}, {"choices": [3]}, {"error": "x"}])
def test_what_is_no_answer_is_said(body: Any) -> None:
    with pytest.raises(ValueError, match="no completion"):
        from_completion(body)
    with pytest.raises(ValueError, match="no answer"):
        from_generate(body)


def test_a_request_is_greedy_and_asks_for_what_comparing_needs() -> None:
    body = request("tiny", (1, 2), 8)
    assert body["prompt"] == [1, 2]
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"]) == (0, True, 8)
    assert body["return_token_ids"] is True
    assert body["logprobs"] > 1
