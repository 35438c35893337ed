"""Two prefill and two decode engines in this process, every pair in use, while control connections are reset.

The same on processes behind the real router, with freezes and kills, is `python -m tests.integration.reference.chaos`.
"""

import itertools
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from pdctl.engines.reference.request import Bootstrap
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.server.metrics import exposition
from tests.integration.reference.harness import ALONE, Pair, alone, pair, prompts, result, start
from tests.integration.reference.test_pair import wait_until
from tests.integration.transfer.sockets import break_connections, control_ports

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

REQUESTS = 100
AT_ONCE = 8
CUTS_A_SECOND = 4
SAMPLING = Sampling(max_new_tokens=6, temperature=0, ignore_eos=True)
LENT = re.compile(r"^pdctl_transfer_((?:scratch_free_slots|staging_free_slots|quarantined){.*}) (\S+)$", re.MULTILINE)


@contextmanager
def resets() -> Iterator[list[int]]:
    """One connection at a time, for as long as the block lasts; how many each time."""
    done: list[int] = []
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(1 / CUTS_A_SECOND):
            done.append(break_connections("reset", control_ports(), limit=1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join()


def lent(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """What every rank has free, or keeps back."""
    engines = [side for pair in pairs for side in (pair.prefill, pair.decode)]
    return [found for engine in engines for found in LENT.findall(exposition(engine).decode())]


def test_resets_cost_no_request_and_nothing_that_was_lent() -> None:
    """Fails if a pair dies of what a broken link has left, or an answer is computed from half of a state."""
    batch = prompts(12, 5, 300)
    with alone() as engine:
        wanted = {prompt: result(start(engine, prompt, SAMPLING).wait()) for prompt in batch}
    narrow, wide = ALONE, replace(ALONE, tp=2)
    with pair(narrow, wide, backend="mooncake") as one, pair(wide, narrow, backend="mooncake") as other:
        routes = list(itertools.product((one, other), (one.decode, other.decode)))

        def ask(number: int) -> bool:
            draw = random.Random(number)
            (prefill, decode), prompt = routes[number % len(routes)], draw.choice(batch)
            bootstrap = Bootstrap("127.0.0.1", prefill.port, draw.getrandbits(60))
            sides = [start(side, prompt, SAMPLING, bootstrap) for side in (prefill.prefill, decode)]
            ended = [side.wait(60) for side in sides][1]
            if ended.failure:
                refused[ended.failure.code] += 1
                return False
            assert result(ended) == wanted[prompt]
            return True

        refused: Counter[str] = Counter()
        assert all(map(ask, range(len(routes))))
        before = lent([one, other])
        with resets() as done, ThreadPoolExecutor(AT_ONCE) as pool:
            right = sum(pool.map(ask, range(REQUESTS)))
        print(f"{right} of {REQUESTS} right, {dict(refused)}, {sum(done)} connections reset")
        assert sum(done) >= 10
        assert right >= 0.99 * REQUESTS
        wait_until(lambda: lent([one, other]) == before, 10)
        assert all(map(ask, range(2 * len(routes))))
