"""Whether a count that was sampled again and again grows without end, or only scatters."""

import threading
from collections.abc import Iterable, Sequence

import numpy as np

from pdctl_transfer.session.drive.workers import Workers

FEWEST = 12
"""Samples below which nothing can be said of a trend."""


def growth(samples: Sequence[float]) -> float:
    """How much a count grew from the first to the last sample, in its own unit, by the median of all pairs' slopes.

    A single sample that is off changes nothing, nor does one step: threads that start late are not a leak.
    """
    values = np.asarray(samples, float)
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (second - first)) * (len(values) - 1))


def leak(samples: Sequence[float], allowance: float) -> str:
    """What is wrong with a series taken under even load, once warm; empty where it holds.

    A leak has grown by more than the allowance over the whole series, and in its second half at the same rate still:
    what fills up and stays full is none.
    """
    if len(samples) < FEWEST:
        return f"{len(samples)} samples say nothing of a trend"
    whole, late = growth(samples), 2 * growth(samples[len(samples) // 2 :])
    if min(whole, late) <= allowance:
        return ""
    return f"grew by {whole:.1f}, still at a rate of {late:.1f}, over {len(samples)} samples; {allowance:g} are allowed"


def steady(peaks: Sequence[Sequence[float]], samples: int) -> bool:
    """Whether no count reached a new peak in the last `samples` of its values. Shape: [time][count]."""
    if len(peaks) <= samples:
        return False
    values = np.asarray(peaks, float)
    return bool((values[-samples:].max(axis=0) <= values[:-samples].max(axis=0)).all())


def at_work(pools: Iterable[Workers]) -> int:
    """Threads of this process, but for those that wait in a pool for a job: these are no leak."""
    return threading.active_count() - sum(waiting(pool) for pool in pools)


def waiting(pool: Workers) -> int:
    """Threads of a pool that wait for a job, as far as it may have so many.

    A pool starts a thread when none is idle, and keeps it. So it grows for as long as the highest peak of an even load
    is still to come, and again after a thread has ended with the job that was abandoned. That ends at its bound. The
    thread of a job that never returns does not wait, from the first one on; one beyond the bound is none of these.
    """
    with pool._ready:
        return min(pool._idle, pool._limit, sum(thread.is_alive() for thread in pool._threads))
