"""Engines in this process: alone or as a pair over a real fabric, and what came of a set of prompts."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.link import PrefillLink, make_fabric, make_link
from pdctl.engines.reference.options import EngineOptions
from pdctl.engines.reference.request import Bootstrap, Request, digest
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.scheduler import Scheduler
from pdctl_transfer.session import Options

GREEDY = Sampling(max_new_tokens=8, temperature=0, ignore_eos=True)
ALONE = EngineOptions(max_total_tokens=4096)
_rooms = itertools.count(random.randrange(1 << 40))


def prompts(count: int, least: int = 5, most: int = 600, seed: int = 7) -> list[tuple[int, ...]]:
    """Prompts of bytes, their lengths spread evenly from `least` to `most`."""
    draw = random.Random(seed)
    lengths = [least + (most - least) * i // max(1, count - 1) for i in range(count)]
    return [tuple(draw.randrange(256) for _ in range(length)) for length in lengths]


@dataclass
class Flight:
    """A request under way."""

    request: Request
    ended: threading.Event

    def wait(self, timeout: float = 240) -> Request:
        assert self.ended.wait(timeout), f"{self.request.rid} is still {self.request.phase}"
        return self.request


def start(
    scheduler: Scheduler, prompt: Sequence[int], sampling: Sampling = GREEDY, bootstrap: Bootstrap | None = None
) -> Flight:
    """Submit one prompt."""
    ended = threading.Event()

    def notify(request: Request) -> None:
        if request.ended:
            ended.set()

    request = Request(f"r{next(_rooms)}", tuple(prompt), sampling, notify, bootstrap)
    scheduler.submit(request)
    return Flight(request, ended)


def result(request: Request) -> tuple[Any, ...]:
    """What must be equal however a request was computed."""
    return request.failure, tuple(request.output), request.finish, digest(request.prompt), tuple(request.proposals)


@contextmanager
def alone(options: EngineOptions = ALONE) -> Iterator[Scheduler]:
    """An aggregate engine."""
    scheduler = Scheduler(Engine(options))
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.close()


@dataclass
class Pair:
    """A prefill and a decode engine, joined by a fabric."""

    prefill: Scheduler
    decode: Scheduler
    port: int

    def start(self, prompt: Sequence[int], sampling: Sampling = GREEDY) -> tuple[Flight, Flight]:
        """Give one prompt to both sides, as a router does."""
        bootstrap = Bootstrap("127.0.0.1", self.port, next(_rooms))
        return start(self.prefill, prompt, sampling, bootstrap), start(self.decode, prompt, sampling, bootstrap)

    def run(self, batch: Sequence[Sequence[int]], sampling: Sampling = GREEDY, at_once: int = 16) -> list[Request]:
        """Requests as decode ended them, `at_once` in flight."""
        ended: list[Request] = []
        for first in range(0, len(batch), at_once):
            flights = [self.start(prompt, sampling) for prompt in batch[first : first + at_once]]
            for prefill, decode in flights:
                ended.append(decode.wait())
                prefill.wait()
        return ended


FabricMaker = Callable[[Engine], Any]


@contextmanager
def pair(
    prefill: EngineOptions = ALONE,
    decode: EngineOptions = ALONE,
    *,
    backend: str = "memory",
    session: Options | None = None,
    prefill_fabric: FabricMaker | None = None,
) -> Iterator[Pair]:
    """Two engines of this process, over a fabric of the given backend; `prefill_fabric` may wrap the sender's."""
    session = session or Options()
    sides: list[Scheduler] = []
    port = 0
    for role, options in (("prefill", prefill), ("decode", decode)):
        engine = Engine(replace(options, role=role, backend=backend, bootstrap_port=0))  # type: ignore[arg-type]
        fabric = prefill_fabric(engine) if prefill_fabric and role == "prefill" else make_fabric(engine.options)
        link = make_link(engine, fabric, session)
        if isinstance(link, PrefillLink):
            port = link.port
        sides.append(Scheduler(engine, link))
        sides[-1].start()
    try:
        yield Pair(sides[0], sides[1], port)
    finally:
        for side in reversed(sides):
            side.close()
