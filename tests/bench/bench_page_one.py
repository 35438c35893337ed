"""Pages of one token, SGLang's default: 4,096 tokens at TP 1 → 2 and 2 → 1, ids in a row and scattered on both sides.

Half a token stands in one piece on either side, so nothing forbids to write a block a token, layer and tensor, as
engines do by themselves: 65,536 blocks of 1 KiB. What the core makes of it is held against that, and against the same
ids into the same receivers at equal TP.
"""

import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.bench.harness import Row, at_least, at_most, in_turn, paired, plain
from tests.bench.remote import pair

TOKENS, HELD = 4096, 8192


def ids() -> dict[str, tuple[list[int], list[int]]]:
    """Of both sides. Scattered as after a while of serving: any of all slots, in any order."""
    rng = np.random.default_rng(0)
    straight = list(range(TOKENS))
    return {
        "ids in a row": (straight, straight),
        "scattered ids": (rng.permutation(HELD)[:TOKENS].tolist(), rng.permutation(HELD)[:TOKENS].tolist()),
    }


def unequal(src: int, dst: int) -> Iterator[Row]:
    """Each kind of ids, in turn with one block a token, then with equal TP."""
    with pair(src, dst, page=1, items=HELD) as side, pair(dst, dst, page=1, items=HELD) as equal:
        for kind, (mine, theirs) in ids().items():
            move = partial(side.seconds, mine, theirs)
            some, token = in_turn(5, move, partial(side.synchronous, mine, theirs))
            ours, same = in_turn(15, move, partial(equal.seconds, mine, theirs))
            name = f"page size 1, {TOKENS:,} tokens, {kind}, TP {src} → {dst}"
            yield plain(name, statistics.median(ours) * 1e3, "ms")
            yield at_least(f"{name}: faster than one block a token", paired(token, some), "×", 20)
            yield at_most(f"{name}: time against TP {dst} → {dst}", paired(ours, same), "×", 2)


def rows() -> Iterator[Row]:
    yield from unequal(1, 2)
    yield from unequal(2, 1)
