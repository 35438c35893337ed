"""Calls in parallel that an interrupt can leave."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def each(call: Callable[[T], R], items: Sequence[T], workers: int = 16) -> list[R]:
    """`call` of every item, in order, at most `workers` at once; raises the first fault.

    An executor as a context manager waits for calls that an interrupt or a fault made pointless. This does not: they
    end by themselves when the engines that they ask are taken down.
    """
    pool = ThreadPoolExecutor(max_workers=max(1, min(workers, len(items))))
    try:
        return list(pool.map(call, items))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
