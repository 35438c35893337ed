"""Whether two answers to one prompt are the same: equal, apart by no more than an engine's own noise, or wrong.

Equal requests need not bring equal tokens. A pair computes the last token of a prompt by another kernel than an engine
that serves alone, ranks add in another order, and bfloat16 keeps eight bits: two tokens that are almost as likely may
change places, and from there on the answers have nothing in common. State that arrived wrong looks alike at first
sight. What tells them apart is how far the logprobs are from each other as long as the tokens are the same, measured
by how far the engine's are from its own when it computes the same text in another order.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from pdctl.engines.answer import Answer, Step, is_clear

SAME: Final = 1e-3
"""Logprobs this near are equal: what single precision and its printing leave."""


class Difference(NamedTuple):
    """How far two answers are apart, up to the first token that is another."""

    shifts: tuple[float, ...]
    """For each token compared, the largest difference of a logprob that both give, in nats."""
    first: int | None
    """Index of the first token that is another; None: all are the same."""
    margin: float | None
    """How near the two tokens were there, in nats, on the side where they were nearer; None: not known."""
    known: bool
    """Whether each token compared has logprobs on both sides."""


class Noise(NamedTuple):
    """How far an engine's answers are from its own, in nats."""

    largest: float
    mean: float
    source: str

    def covers(self, shifts: Sequence[float]) -> bool:
        """Whether differences may come of noise: none is much larger, nor are they all in all.

        A sample's largest is not the largest there is, so a single one may be twice as large. A wrong state shifts
        every token, so the mean says most; one outlier has room in it.
        """
        mean = math.fsum(shifts) / len(shifts)
        return max(shifts) <= 2 * self.largest and mean <= 3 * self.mean + self.largest / len(shifts)


NONE: Final = Noise(0.0, 0.0, "none, as it computes the same in any order")
ROUNDING: Final = Noise(0.125, 0.04, "by rounding")
"""Two steps of a bfloat16 logit between 8 and 16. No engine's noise is taken for smaller: it is measured in one layout
of ranks, and those of another add in an order that it never shows."""
BELIEVED: Final = 0.5
"""An engine whose answers are further from its own than this in the mean is no yardstick."""


class Verdict(NamedTuple):
    """What two answers are to each other, and in words how that is seen."""

    kind: Literal["equal", "noise", "wrong", "untold"]
    words: str


def compare(ours: Answer, theirs: Answer) -> Difference:
    """Two answers to the same prompt, token by token up to the first that is another."""
    shifts: list[float | None] = []
    for index, (here, there) in enumerate(zip(ours.steps, theirs.steps, strict=False)):
        shifts.append(_shift(here, there))
        if here.token != there.token:
            return _difference(shifts, index, _margin(here, there))
    if len(ours.steps) != len(theirs.steps):
        return _difference([*shifts, None], len(shifts), None)
    return _difference(shifts, None, None)


def judge(found: Difference, noise: Noise) -> Verdict:
    """The verdict on a difference. Without logprobs nothing but equal tokens can be told from a fault."""
    other = "" if found.first is None else f"other tokens from number {found.first + 1} on"
    if not found.known:
        if found.first is None:
            return Verdict("equal", "equal tokens; there are no logprobs to compare")
        said = f"{other}, and there are no logprobs to tell noise from a fault"
        return Verdict("wrong" if noise is NONE else "untold", said)
    largest = max(found.shifts, default=0.0)
    said = f"logprobs up to {largest:.2g} apart"
    if found.first is None and largest <= SAME:
        return Verdict("equal", said)
    if other:
        said += f"; {other}" + ("" if found.margin is None else f", where the two were {found.margin:.2g} apart")
    if noise is NONE:
        return Verdict("wrong", said)
    said += f"; the engine's noise is {noise.largest:.2g} {noise.source}"
    return Verdict("noise" if noise.covers(found.shifts) else "wrong", said)


def noise_of(answers: Iterable[Answer], ask: Callable[[Sequence[int], int], Answer]) -> Noise:
    """How far an engine is from itself: its answers against what it says to each prompt with their beginning added.

    The text is the same, but tokens that were decoded one by one are now computed at once, as part of the prompt.
    `ask` brings its greedy answer of so many tokens to a prompt of token ids, and what it raises passes through.
    Answers whose token ids are not known add nothing.
    """
    shifts: list[float] = []
    for answer in answers:
        ids = [token for token in answer.tokens if isinstance(token, int)]
        if not answer.prompt or len(ids) != len(answer.steps):
            continue
        for taken in {1, len(ids) // 4, len(ids) // 2} - {0, len(ids)}:
            again = ask((*answer.prompt, *ids[:taken]), len(ids) - taken)
            shifts += compare(answer.after(taken), again).shifts
    return measured(shifts)


def measured(shifts: Sequence[float]) -> Noise:
    """Noise from a sample of differences."""
    mean = math.fsum(shifts) / len(shifts) if shifts else math.inf
    if not mean <= BELIEVED:
        return ROUNDING
    largest = max(shifts)
    if largest <= ROUNDING.largest and mean <= ROUNDING.mean:
        return ROUNDING
    return Noise(max(largest, ROUNDING.largest), max(mean, ROUNDING.mean), "from itself")


def _difference(shifts: Sequence[float | None], first: int | None, margin: float | None) -> Difference:
    numbers = tuple(shift for shift in shifts if shift is not None)
    return Difference(numbers, first, margin, known=len(numbers) == len(shifts))


def _shift(here: Step, there: Step) -> float | None:
    """The largest difference of a logprob; None where nothing is known of a token on both sides."""
    found = [
        _apart(here.likely[word], there.likely[word])
        for word in here.likely.keys() & there.likely.keys()
        if is_clear(word) or (word == here.word == there.word and here.token == there.token)
    ]
    for one, other in ((here, there), (there, here)):
        if one.clear and one.word in one.likely and one.word not in other.likely and len(other.likely) > 1:
            # not among the best there: at least as far as the worst of those
            found.append(max(0.0, one.likely[one.word] - min(other.likely.values())))
    return max(found, default=None)


def _apart(one: float, other: float) -> float:
    """The distance of two logprobs; infinite where one is not a number."""
    if one == other:
        return 0.0
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance


def _margin(here: Step, there: Step) -> float | None:
    """How much less likely the other's token was, on the side where it was less so."""
    found = [
        one.likely[one.word] - one.likely.get(other.word, min(one.likely.values()))
        for one, other in ((here, there), (there, here))
        if one.word in one.likely and len(one.likely) > 1 and one.clear and other.clear
    ]
    return min(found, default=None)
