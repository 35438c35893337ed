"""What a session adds to each request: requests of one page, many rooms at once, one slow peer among many.

A page is 64 tokens at TP 1 → 1, 1 MiB with 4 layers. As in `bench_transfer`, rooms are open on both sides before the
clock starts, and a request's time runs from `send` to the receiver's confirmation.
"""

import itertools
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from tests.bench.harness import Row, at_most, in_turn, paired, percentile, plain
from tests.bench.remote import Pair, Remote, pair, started
from tests.bench.shape import Shape

ROUNDS, A_ROUND = 10, 100
ROOMS = 200
ITEMS = 16

REAL_LAYERS = 32
"""Models have so many and more. With a few layers a page is on the wire for less time than what a session does about it
takes: shown, without a target.
"""

OTHERS = 3
STUCK_PAGES, PAGES_EACH = 32, 8
LIMIT_S = 3.0


def one_page(layers: int) -> Iterator[Row]:
    """A page at a time, in turn with both bare calls and the floor. Ratios are medians of the rounds' own."""
    rounds = []
    with pair(1, 1, layers=layers, items=ITEMS) as side:
        for number in range(ROUNDS + 1):
            ids = [number % ITEMS]
            made = side.opened([ids] * A_ROUND)
            rounds.append(side.prefill.call("in_turn", made, ids, ids, side.decode.call("echo")))
            side.decode.call("wait", made)
    del rounds[0]  # threads start
    for share in (50, 99):
        ours, asynch, sync, floor = ([percentile(each, share) for each in way] for way in zip(*rounds, strict=True))
        name = f"one page, {layers // 4} MiB in {2 * layers} blocks, p{share} of {A_ROUND}"
        yield plain(name, statistics.median(ours) * 1e3, "ms")
        for what, theirs in (("asynchronous", asynch), ("synchronous", sync)):
            yield plain(f"{name}: of the bare {what} call", statistics.median(theirs) * 1e3, "ms")
            against, slower = f"{name}: time against the bare {what} call's", paired(ours, theirs)
            yield at_most(against, slower, "×", 1.5) if layers >= REAL_LAYERS else plain(against, slower, "×")
        against = f"{name}: time against the asynchronous call's and a message there and back"
        yield plain(against, paired(ours, floor), "×")


class Burst(NamedTuple):
    """What many requests took: wall seconds, and both processes' CPU seconds."""

    seconds: float
    sender: float
    receiver: float


def measured(side: Pair, run: Callable[[], float]) -> Burst:
    """`run` gives its wall seconds; CPU is that of both processes meanwhile."""
    before = side.prefill.call("cpu"), side.decode.call("cpu")
    seconds = run()
    return Burst(seconds, side.prefill.call("cpu") - before[0], side.decode.call("cpu") - before[1])


def many_rooms(side: Pair) -> Iterator[Row]:
    """All rooms are open, then all are sent. CPU is counted from before they are opened."""
    pages = [[number] for number in range(ROOMS)]

    def burst() -> float:
        made = side.opened(pages)
        seconds: float = side.prefill.call("timed", made, pages)[0]
        side.decode.call("wait", made)
        return seconds

    def bare() -> float:
        seconds: float = side.prefill.call("one_by_one", pages)
        return seconds

    burst()
    ours, calls = in_turn(5, partial(measured, side, burst), partial(measured, side, bare))
    wall, sender, receiver = ([each[n] for each in ours] for n in range(3))
    name = f"{ROOMS} rooms at once, a page each"
    yield plain(name, ROOMS / statistics.median(wall), "requests/s")
    bare_wall = [each.seconds for each in calls]
    yield plain(f"{name}: time against as many bare asynchronous calls in a row", paired(wall, bare_wall), "×")
    for whose, mine, theirs in (
        ("sender's", sender, [each.sender for each in calls]),
        ("receiver's", receiver, [each.receiver for each in calls]),
        ("both sides'", *([each.sender + each.receiver for each in some] for some in (ours, calls))),
    ):
        yield plain(f"{name}: {whose} CPU a request", statistics.median(mine) / ROOMS * 1e3, "ms")
        yield plain(f"{name}: {whose} CPU against the bare asynchronous calls'", paired(mine, theirs), "×")


@contextmanager
def frozen(node: Remote) -> Iterator[None]:
    """It does not run at all."""
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


@contextmanager
def slowed(node: Remote) -> Iterator[None]:
    """It runs for 5 ms of each 50."""
    over = threading.Event()

    def pulse() -> None:
        while not over.wait(0.005):
            node.freeze()
            over.wait(0.045)
            node.thaw()

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        node.thaw()


class Others:
    """Decodes whose requests are timed while another one is slow."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._turn = itertools.cycle(pairs)
        self._late: list[tuple[Pair, list[int]]] = []

    def median(self) -> float:
        """Seconds of nine requests, one after the other. One that takes LIMIT_S counts as so long, and is the last."""
        ids = list(range(PAGES_EACH))
        seconds = []
        for other in itertools.islice(self._turn, 9):
            made = other.opened([ids])
            took, done = other.prefill.call("until", made[0], ids, LIMIT_S)
            seconds.append(took)
            if not done:
                self._late.append((other, made))
                break
            other.decode.call("wait", made)
        return statistics.median(seconds)

    def finish(self) -> None:
        """What was late must still end well."""
        for other, made in self._late:
            other.prefill.call("wait", made)
            other.decode.call("wait", made)
        self._late.clear()


def slow_peer(slow: Pair, others: Others) -> Iterator[Row]:
    """One prefill rank; a decode is sent more than its sockets take, and the others' requests are timed meanwhile."""
    others.median()
    for how, word, count in ((frozen, "frozen", 12), (slowed, "slowed to a tenth", 40)):
        stuck = [list(range(STUCK_PAGES))] * count
        before, during = [], []
        for _ in range(5):
            before.append(others.median())
            made = slow.opened(stuck)
            with how(slow.decode):
                slow.prefill.call("send", made, stuck)
                during.append(others.median())
            slow.prefill.call("wait", made)
            slow.decode.call("wait", made)
            others.finish()
        name = f"one of {1 + OTHERS} decodes {word} with {count} rooms of {STUCK_PAGES} MiB, others' median"
        yield plain(name, statistics.median(during) * 1e3, "ms")
        yield at_most(f"{name}: against before", paired(during, before), "×", 2)


def rows() -> Iterator[Row]:
    yield from one_page(layers=4)
    yield from one_page(layers=32)
    with pair(1, 1, items=ROOMS) as side:
        yield from many_rooms(side)
    with started(Shape(1), *[Shape(1)] * (1 + OTHERS)) as (slow, *others):
        yield from slow_peer(slow, Others(others))
