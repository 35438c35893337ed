"""The pairs of real engines over which the core must bring the aggregate engine's tokens, as data.

Names are pools of `core_pools`. `way`: what both engines must say of the pair.
"""

import random
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

TOKENS = 24
AT_ONCE = 8
FIRST_ID, LAST_ID = 32, 250
"""Ids of the tiny models that stand for a byte each."""
Tokens = tuple[int, ...]


class Pair(NamedTuple):
    """Two pools, and by which way bytes go from one to the other. `short`: it is tried in `make test-engines`, too."""

    what: str
    prefill: str
    decode: str
    way: Literal["core", "engine"]
    short: bool = True

    def __str__(self) -> str:
        return self.what


SGLANG: Sequence[Pair] = (
    Pair("TP 1 → 1", "p1", "d1", "core"),
    Pair("TP 1 → 2, which auto leaves to the core", "p1", "d2", "core"),
    Pair("TP 2 → 1", "p2", "d1", "core"),
    Pair("PP 2 → 1", "staged", "d1", "core"),
)
"""Dense, float32."""

SGLANG_HYBRID: Sequence[Pair] = (Pair("TP 1 → 2", "p1", "d2", "core"),)
"""Gated delta net, float32."""

SGLANG_CHOICES: Sequence[Pair] = (
    Pair("auto at equal TP", "p1", "auto1", "engine"),
    Pair("decode on the engine's path", "p1", "d-engine", "engine", short=False),
    Pair("decode without the plugin", "p1", "off", "engine"),
    Pair("prefill on the engine's path", "p-engine", "d1", "engine", short=False),
)
"""Who takes which way, and that either one serves."""

VLLM: Sequence[Pair] = (
    Pair("TP 1 → 1", "p1", "d1", "core"),
    Pair("TP 1 → 2", "p1", "d2", "core"),
    Pair("TP 2 → 1", "p2", "d1", "core"),
)

VLLM_CHOICES: Sequence[Pair] = (Pair("without the plugin", "p-off", "off", "engine", short=False),)
"""The engine's own path: nothing of pdctl's is left."""

VLLM_HYBRID: Sequence[Pair] = (Pair("TP 1 → 2", "p1", "d2", "core"),)
"""Gated delta net, bfloat16."""


@cache
def few() -> tuple[Tokens, ...]:
    """Of each kind one: short, across pages, its beginning in the cache, and of several pages."""
    return (*_prompts(7, (3, 31, 64, 130)), *_with_one_beginning(8, 200, (40, 90)))


@cache
def fifty() -> tuple[Tokens, ...]:
    """Of 3 to 1,500 tokens, most of them short; ten begin alike, two are equal."""
    rng = random.Random(9)
    lengths = [int(3 * 500 ** rng.random()) for _ in range(39)]
    return (*_prompts(10, lengths), *_with_one_beginning(11, 300, range(10, 110, 10)), *_prompts(10, lengths[:1]))


@cache
def chunked() -> tuple[Tokens, ...]:
    """Of several chunks of 4,096 tokens each."""
    return _prompts(12, (16_000, 9_001))


def fresh(length: int) -> Tokens:
    """One that no cache has."""
    return _prompts(random.randrange(1 << 40, 1 << 50), (length,))[0]


def _prompts(seed: int, lengths: Sequence[int]) -> tuple[Tokens, ...]:
    rng = random.Random(seed)
    return tuple(tuple(rng.randrange(FIRST_ID, LAST_ID) for _ in range(length)) for length in lengths)


def _with_one_beginning(seed: int, length: int, lengths: Sequence[int]) -> tuple[Tokens, ...]:
    (beginning,) = _prompts(seed, (length,))
    return tuple(beginning + rest for rest in _prompts(seed + 100, lengths))
