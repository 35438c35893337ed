"""What a session adds to each request: requests of one page, many rooms at once, one slow peer among many.

A page is 64 tokens at TP 1 → 1, 1 MiB with 4 layers. As in `bench_transfer`, rooms are open on both sides before the
clock starts, and a request's time runs from `send` to the receiver's confirmation.
"""

import itertools
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.bench.harness import Row, at_most, in_turn, paired, percentile, plain
from tests.bench.remote import Pair, Remote, pair, started
from tests.bench.shape import Shape

ROUNDS, A_ROUND = 10, 100
ROOMS = 200
ITEMS = 16

REAL_LAYERS = 32
"""Models have so many and more. With a few layers a page is on the wire for less time than five hand-overs between
threads and processes take: shown, without a target.
"""

OTHERS = 3
STUCK_PAGES, PAGES_EACH = 32, 8
LIMIT_S = 3.0


def one_page(layers: int) -> Iterator[Row]:
    """A page at a time, in turn with both bare calls. Ratios are medians of the rounds' own."""
    rounds = []
    with pair(1, 1, layers=layers, items=ITEMS) as side:
        for number in range(ROUNDS + 1):
            ids = [number % ITEMS]
            made = side.opened([ids] * A_ROUND)
            rounds.append(side.prefill.call("in_turn", made, ids, ids))
            side.decode.call("wait", made)
    del rounds[0]  # threads start
    for share in (50, 99):
        ours, asynch, sync = ([percentile(each, share) for each in way] for way in zip(*rounds, strict=True))
        name = f"one page, {layers // 4} MiB in {2 * layers} blocks, p{share} of {A_ROUND}"
        yield plain(name, statistics.median(ours) * 1e3, "ms")
        yield plain(f"{name}: of the bare asynchronous call", statistics.median(asynch) * 1e3, "ms")
        yield plain(f"{name}: of the bare synchronous call", statistics.median(sync) * 1e3, "ms")
        against, slower = f"{name}: time against the bare asynchronous call's", paired(ours, asynch)
        counts = share == 50 and layers >= REAL_LAYERS
        yield at_most(against, slower, "×", 1.5) if counts else plain(against, slower, "×")


def many_rooms(side: Pair) -> Iterator[Row]:
    """All rooms are open, then all are sent. CPU is that of both processes, from before they are opened."""
    pages = [[number] for number in range(ROOMS)]
    sender, receiver = [], []

    def burst() -> float:
        before = side.prefill.call("cpu"), side.decode.call("cpu")
        made = side.opened(pages)
        seconds: float = side.prefill.call("timed", made, pages)[0]
        side.decode.call("wait", made)
        sender.append(side.prefill.call("cpu") - before[0])
        receiver.append(side.decode.call("cpu") - before[1])
        return seconds

    burst()
    sender.clear()
    receiver.clear()
    ours, bare = in_turn(5, burst, lambda: side.prefill.call("one_by_one", pages))
    name = f"{ROOMS} rooms at once, a page each"
    yield plain(name, ROOMS / statistics.median(ours), "requests/s")
    yield plain(f"{name}: time against as many bare asynchronous calls in a row", paired(ours, bare), "×")
    yield plain(f"{name}: sender's CPU a request", statistics.median(sender) / ROOMS * 1e3, "ms")
    yield plain(f"{name}: receiver's CPU a request", statistics.median(receiver) / ROOMS * 1e3, "ms")


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
