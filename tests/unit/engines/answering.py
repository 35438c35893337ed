"""A model of an engine that answers: exact logits, its own noise on top, and the state of whoever it was given."""

import math
import random
from collections.abc import Sequence

from pdctl.engines.answer import TOP, Answer, Step

VOCABULARY, LENGTH, PROMPT = 40, 16, (7, 8, 9)


class Model:
    """Decodes greedily from logits that depend on all tokens so far and on its state."""

    def __init__(self, noise: float = 0.0, seed: int = 0, state: int = 0) -> None:
        self.noise, self.state, self._random = noise, state, random.Random(seed)

    def logits(self, tokens: Sequence[int]) -> list[float]:
        source = random.Random(f"{self.state} {tuple(tokens)}")
        exact = [source.gauss(0, 2) for _ in range(VOCABULARY)]
        return [value + self._random.gauss(0, self.noise) for value in exact]

    def answer(self, prompt: Sequence[int] = PROMPT, length: int = LENGTH) -> Answer:
        tokens, steps = list(prompt), []
        for _ in range(length):
            logits = self.logits(tokens)
            total = math.log(math.fsum(map(math.exp, logits)))
            best = sorted(range(VOCABULARY), key=lambda token: -logits[token])[:TOP]
            steps.append(Step(best[0], str(best[0]), {str(token): logits[token] - total for token in best}))
            tokens.append(best[0])
        return Answer("", tuple(steps), tuple(prompt))
