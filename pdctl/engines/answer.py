"""What an engine answered: its tokens, and how likely it held each of them and its best alternatives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from pdctl.engines import http
from pdctl.engines.deadline import Deadline

Prompt = str | Sequence[int]
"""Text, or token ids."""
TOP: Final = 5
"""Alternatives asked for at each token."""


class Step(NamedTuple):
    """One token of an answer."""

    token: int | str
    """Its id; its text, or the whole answer's, where the engine says no ids."""
    word: str = ""
    """What `likely` calls it."""
    likely: Mapping[str, float] = {}
    """Logprobs of the token and its alternatives. Empty where the engine gives none."""

    @property
    def clear(self) -> bool:
        """Whether its word is no other token's: pieces of characters are all shown alike."""
        return is_clear(self.word)


def is_clear(word: str) -> bool:
    """Whether a word stands for one token only."""
    return word != "" and "\ufffd" not in word


class Answer(Struct, frozen=True):
    """The answer to one greedy request."""

    text: str
    steps: tuple[Step, ...]
    prompt: tuple[int, ...] = ()
    """The prompt's token ids; empty where the engine does not say."""

    @property
    def tokens(self) -> tuple[int | str, ...]:
        """The tokens alone."""
        return tuple(step.token for step in self.steps)

    def after(self, count: int) -> "Answer":
        """What follows the first tokens: an answer to the prompt with those tokens at its end."""
        return Answer("", self.steps[count:], ())


def request(model: str, prompt: Prompt, tokens: int) -> dict[str, Any]:
    """The body of a greedy /v1/completions of so many tokens, with all that helps to compare answers."""
    return {
        "model": model,
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": TOP,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,  # vLLM's, whose other words are not one a token
    }


def without_logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for an engine that was told to give none (vLLM's `--max-logprobs 0`), and rejects it."""
    return {key: value for key, value in body.items() if key not in ("logprobs", "return_tokens_as_token_ids")}


def post(url: str, body: Mapping[str, Any], deadline_s: float, key: str | None = None) -> Any:
    """The answer to a request, if need be without logprobs. Raises Unreachable."""
    deadline = Deadline(deadline_s)
    try:
        return http.post_json(f"{url}/v1/completions", body, deadline_s, key=key)
    except http.Rejected as failure:
        if "logprob" not in str(failure):
            raise
        return http.post_json(f"{url}/v1/completions", without_logprobs(body), deadline.left(), key=key)


def complete(url: str, model: str, prompt: Prompt, tokens: int, deadline_s: float, key: str | None = None) -> Answer:
    """Ask an engine that serves alone, or a router. Raises Unreachable; ValueError where what comes is no answer."""
    return from_completion(post(url, request(model, prompt, tokens), deadline_s, key))


def from_completion(document: Any) -> Answer:
    """Read the answer of /v1/completions, of any engine. Raises ValueError."""
    try:
        choice = document["choices"][0]
        text = str(choice["text"])
        prompt = tuple(int(token) for token in choice.get("prompt_token_ids") or ())
        given = choice.get("logprobs") or {}
        words: list[str] = given.get("tokens") or []
        tokens: Sequence[int | str] = choice.get("token_ids") or words or ([text] if text else [])
        if not words or len(words) != len(tokens):  # no logprobs
            return Answer(text, tuple(map(Step, tokens)), prompt)
        chosen, tops = given["token_logprobs"], given.get("top_logprobs") or [None] * len(words)
        steps = tuple(
            Step(token, word, {**_numbers(top), **_numbers({word: logprob})})
            for token, word, logprob, top in zip(tokens, words, chosen, tops, strict=True)
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no completion: {str(document)[:300]}") from error
    return Answer(text, steps, prompt)


def from_generate(document: Any) -> Answer:
    """Read the answer of SGLang's /generate. Raises ValueError."""
    try:
        ids, meta = document["output_ids"], document["meta_info"]
        chosen = meta.get("output_token_logprobs") or [None] * len(ids)
        steps = tuple(
            Step(token, str(token), {} if one is None else _numbers({str(token): one[0]}))
            for token, one in zip(ids, chosen, strict=True)
        )
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no answer: {str(document)[:300]}") from error
    return Answer(str(document.get("text", "")), steps)


def _numbers(logprobs: Mapping[str, Any] | None) -> dict[str, float]:
    return {word: float(value) for word, value in (logprobs or {}).items() if value is not None}
