"""How fast state moves, as ratios on one machine: against one block a token, against equal TP, against bare calls.

Both sides are a process each, with one fabric a rank, over Mooncake on loopback. A request's time runs from `send` to
the receiver's confirmation; links stand before. Bare calls get finished lists and confirm nothing. The synchronous one
spins on a core, which slows the receiver where cores are few: the asynchronous one is how sessions write.
"""

import statistics
from collections.abc import Iterator
from functools import partial

import numpy as np

from tests.bench.harness import Row, at_least, at_most, in_turn, paired, plain
from tests.bench.remote import Pair, pair

PAGES = 128
BLOCKS = (1 << 20, 4 << 20, 16 << 20)
STRAIGHT = list(range(PAGES))
RANDOM: list[int] = np.random.default_rng(0).permutation(PAGES).tolist()
IDS = {"consecutive": STRAIGHT, "random": RANDOM}


def unequal(src: int, dst: int, equal: Pair) -> Iterator[Row]:
    """Against the same bytes into the same receivers at equal TP, and against one block a token."""
    name = f"TP {src} → {dst}, 128 MiB, 32 a rank"
    with pair(src, dst) as side:
        ours, same = in_turn(15, *(partial(each.seconds, STRAIGHT, STRAIGHT) for each in (side, equal)))
        token = statistics.median(side.synchronous(STRAIGHT, STRAIGHT) for _ in range(3))
    yield plain(name, statistics.median(ours) * 1e3, "ms")
    faster = token / statistics.median(ours)
    yield at_least(f"{name}: faster than one block a token, batches of 1,024", faster, "×", 20)
    yield at_most(f"{name}: time against the same bytes at TP {dst} → {dst}", paired(ours, same), "×", 1.5)


def equal_tp(side: Pair) -> Iterator[Row]:
    """Against bare calls for the same merged block list."""
    for kind, ids in IDS.items():
        name = f"TP 1 → 1, 128 MiB, {kind} pages"
        move = partial(side.seconds, ids, STRAIGHT)
        bare = partial(side.synchronous, ids, STRAIGHT), partial(side.asynchronous, ids, STRAIGHT)
        ours, sync, asynch = in_turn(15, move, *bare)
        yield at_least(f"{name}: speed against the bare synchronous call", paired(sync, ours), "×", 0.9)
        yield plain(f"{name}: speed against the bare asynchronous call", paired(asynch, ours), "×")
        ours, *equal = in_turn(5, move, *(partial(side.equal, 128 << 20, size) for size in BLOCKS))
        yield plain(f"{name}: speed against the best block size", min(paired(each, ours) for each in equal), "×")


def curve() -> Iterator[Row]:
    """The sender's CPU for a request; 256 bytes a token and entry, so that what is not wire shows."""

    def cpu(side: Pair, pages: int) -> float:
        ids = list(range(pages))
        return min(side.move(ids, ids)[1] for _ in range(3)) * 1e3

    with pair(1, 1, items=512, head_bytes=32) as side:
        for pages in (64, 128, 256, 512):
            yield plain(f"sender CPU, {pages * 64 >> 10}k tokens, 4 layers, TP 1 → 1", cpu(side, pages), "ms")
    for layers in (8, 16):
        with pair(1, 1, layers=layers, head_bytes=32) as side:
            yield plain(f"sender CPU, 8k tokens, {layers} layers, TP 1 → 1", cpu(side, 128), "ms")
    for dst in (2, 4):
        with pair(1, dst, head_bytes=32) as side:
            yield plain(f"sender CPU, 8k tokens, 4 layers, TP 1 → {dst}", cpu(side, 128), "ms")


def rows() -> Iterator[Row]:
    with pair(4, 4) as equal:
        yield from unequal(1, 4, equal)
    with pair(1, 1) as equal:
        yield from unequal(4, 1, equal)
        yield from equal_tp(equal)
    yield from curve()
