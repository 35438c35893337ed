"""Pages of one token, SGLang's default: 4,096 tokens at TP 1 → 2 and 2 → 1, ids in a row and scattered on both sides.

Half a token stands in one piece on either side, so nothing forbids to write a block a token, layer and tensor, as
engines do by themselves: 65,536 blocks of 1 KiB. What the core makes of it is held against that, and against the same
ids into the same receivers at equal TP.
"""

import statistics
from collections.abc import Iterator

import numpy as np

from tests.bench.harness import Row, at_least, at_most, in_turn, paired, plain
from tests.bench.remote import pair

TOKENS, HELD = 4096, 8192
REPEAT = 5


def ids() -> dict[str, tuple[list[int], list[int]]]:
    """Of both sides. Scattered as after a while of serving: any of all slots, in any order."""
    rng = np.random.default_rng(0)
    straight = list(range(TOKENS))
    return {
        "ids in a row": (straight, straight),
        "scattered ids": (rng.permutation(HELD)[:TOKENS].tolist(), rng.permutation(HELD)[:TOKENS].tolist()),
    }


def unequal(src: int, dst: int) -> Iterator[Row]:
    """Each kind of ids: ours, equal TP and one block a token in turn."""
    with pair(src, dst, page=1, items=HELD) as side, pair(dst, dst, page=1, items=HELD) as equal:
        for kind, (mine, theirs) in ids().items():
            ours, same, token = in_turn(
                REPEAT,
                lambda mine=mine, theirs=theirs: side.seconds(mine, theirs),  # type: ignore[misc]
                lambda mine=mine, theirs=theirs: equal.seconds(mine, theirs),  # type: ignore[misc]
                lambda mine=mine, theirs=theirs: side.synchronous(mine, theirs),  # type: ignore[misc]
            )
            name = f"page size 1, {TOKENS:,} tokens, {kind}, TP {src} → {dst}"
            yield plain(name, statistics.median(ours) * 1e3, "ms")
            yield at_least(f"{name}: faster than one block a token", paired(token, ours), "×", 20)
            yield at_most(f"{name}: time against TP {dst} → {dst}", paired(ours, same), "×", 2)


def rows() -> Iterator[Row]:
    yield from unequal(1, 2)
    yield from unequal(2, 1)
