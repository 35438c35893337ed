"""Equal requests to a fleet and to an aggregate engine, and what differs."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pdctl.engines.http import post_json
from pdctl.up.parallel import each

PROMPTS = 16
SHORTEST, LONGEST = 5, 600
NEW_TOKENS = 64
REQUEST_S = 300.0


@dataclass(frozen=True)
class Answer:
    """What one request brought."""

    tokens: tuple[int, ...]
    finish: str
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """Answers of a fleet beside those of the aggregate engine."""

    total: int
    tokens_equal: int
    finish_equal: int
    logprob_difference: float

    @property
    def ok(self) -> bool:
        """Whether all tokens and finish reasons are equal."""
        return self.tokens_equal == self.finish_equal == self.total


def make_prompts(seed: int = 0) -> list[list[int]]:
    """Prompts of evenly spread lengths, as byte-level token ids of printable text."""
    source = random.Random(seed)
    step = (LONGEST - SHORTEST) / (PROMPTS - 1)
    return [[source.randrange(32, 127) for _ in range(round(SHORTEST + step * index))] for index in range(PROMPTS)]


def ask(url: str, prompt: Sequence[int]) -> Answer:
    """One greedy request. Raises Unreachable."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"temperature": 0, "max_new_tokens": NEW_TOKENS},
        "return_logprob": True,
    }
    answer = post_json(f"{url}/generate", body, REQUEST_S)
    meta = answer["meta_info"]
    logprobs = tuple(float(triple[0]) for triple in meta["output_token_logprobs"])
    return Answer(tuple(answer["output_ids"]), meta["finish_reason"]["type"], logprobs)


def ask_all(url: str, prompts: Sequence[Sequence[int]], at_a_time: int) -> list[Answer]:
    """All prompts, so many at a time. Raises Unreachable."""
    return each(partial(ask, url), prompts, workers=at_a_time)


def compare(answers: Sequence[Answer], expected: Sequence[Answer]) -> Comparison:
    """Count what is equal. Where tokens differ, logprobs are compared up to the first that does."""
    pairs = list(zip(answers, expected, strict=True))
    differences = [
        abs(ours - theirs)
        for a, b in pairs
        for ours, theirs, x, y in zip(a.logprobs, b.logprobs, a.tokens, b.tokens, strict=False)
        if x == y
    ]
    return Comparison(
        len(pairs),
        sum(a.tokens == b.tokens for a, b in pairs),
        sum(a.finish == b.finish for a, b in pairs),
        max(differences, default=0.0),
    )
