"""Calls in parallel that an interrupt can leave."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

WAKE_S = 0.2
"""Longest wait of the main thread. Python handles a signal between two of its instructions: one that arrives just
before the thread blocks would otherwise wait as long as the thread does."""

T = TypeVar("T")
R = TypeVar("R")


def each(
    call: Callable[[T], R], items: Sequence[T], workers: int = 16, meanwhile: Callable[[], None] = lambda: None
) -> list[R]:
    """`call` of every item, in order, at most `workers` at once; raises the first fault.

    `meanwhile` is called now and then while they run; what it raises ends the wait.

    An executor as a context manager waits for calls that an interrupt or a fault made pointless. This does not: they
    end by themselves when the engines that they ask are taken down.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, min(workers, len(items))))
    try:
        waiting = futures = [pool.submit(call, item) for item in items]
        while waiting:
            done, rest = wait(waiting, WAKE_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            waiting = list(rest)
            if waiting:
                meanwhile()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
