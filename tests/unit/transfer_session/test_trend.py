"""The soak's judgement: steady, noisy and late ones hold, what leaks is caught however slowly."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pdctl_transfer.session.drive.workers import Workers
from tests.integration.transfer.trend import FEWEST, at_work, growth, leak, steady, waiting

N = 100
THREADS, RSS = 2.0, 16.0


def scatter(seed: int, spread: int) -> list[int]:
    source = random.Random(seed)
    return [source.randint(-spread, 0) for _ in range(N)]


def test_a_pool_whose_threads_come_and_go_holds() -> None:
    for seed in range(20):
        assert leak([22 + off for off in scatter(seed, 4)], THREADS) == ""


def test_workers_that_start_late_hold() -> None:
    """18 at first, 21 from some moment on: what failed on a slow machine."""
    for at in range(1, N):
        assert leak([18] * at + [21] * (N - at), THREADS) == "", at


def test_memory_that_fills_up_and_stays_full_holds() -> None:
    for seed in range(20):
        filling = [100 + 60 * (1 - 0.9**i) + off for i, off in enumerate(scatter(seed, 3))]
        assert leak(filling, RSS) == ""


def test_single_peaks_hold() -> None:
    assert leak([80 + 40 * (i % 9 == 0) + 40 * (i > N - 4) for i in range(N)], THREADS) == ""


@pytest.mark.parametrize("every", [1, 3, 8, 15])
def test_one_thread_lost_now_and_then_is_a_leak(every: int) -> None:
    """Down to six in the whole run, under a scatter of two."""
    for seed in range(20):
        found = leak([18 + i // every + off for i, off in enumerate(scatter(seed, 2))], THREADS)
        assert "grew by" in found, seed
        assert "2 are allowed" in found


def test_slowly_leaking_memory_is_a_leak() -> None:
    """26 MiB in the run, on top of what fills up, under a scatter of five."""
    for seed in range(20):
        leaking = [85 + 8 * (1 - 0.9**i) + 0.26 * i + off for i, off in enumerate(scatter(seed, 5))]
        assert "grew by" in leak(leaking, RSS), seed


def test_a_leak_that_begins_after_a_third_of_the_run_is_a_leak() -> None:
    assert "grew by" in leak([20 + max(0, i - N // 3) / 5 for i in range(N)], THREADS)


def test_few_samples_are_not_a_pass() -> None:
    assert "say nothing" in leak([20] * (FEWEST - 1), THREADS)


def test_growth_is_in_the_counts_own_unit() -> None:
    assert growth([3 * i for i in range(11)]) == pytest.approx(30)
    assert growth([7] * 20) == 0


def test_warm_is_when_no_count_reaches_a_new_peak() -> None:
    assert not steady([[1, 5]] * 3, 3)
    assert steady([[1, 5]] * 4, 3)
    assert steady([[4, 5], [3, 5], [4, 4], [2, 5]], 3)
    assert not steady([[4, 5], [3, 5], [4, 6], [2, 5]], 3)


@contextmanager
def held(pool: Workers, jobs: int) -> Iterator[None]:
    """So many jobs at once, which all run until the block ends."""
    release, running = threading.Event(), threading.Barrier(jobs + 1)

    def job() -> None:
        running.wait(10)
        release.wait(10)

    for _ in range(jobs):
        pool.submit(job)
    running.wait(10)
    try:
        yield
    finally:
        release.set()


def working(pool: Workers, name: str) -> int:
    """What a soak counts of a pool's threads."""
    return sum(thread.name.startswith(name) for thread in threading.enumerate()) - waiting(pool)


def rests(pool: Workers, name: str) -> bool:
    """Whether all its jobs have ended, soon."""
    end = time.monotonic() + 10
    while working(pool, name) and time.monotonic() < end:
        time.sleep(0.001)
    return working(pool, name) == 0


def test_a_pool_that_fills_up_to_its_bound_does_not_count() -> None:
    """Its highest peak comes late, so that the bare count of threads looks like a leak."""
    pool = Workers("fills", 6)
    threads = []
    for wide in range(1, 7):
        with held(pool, wide):
            assert working(pool, "fills") == wide
        assert rests(pool, "fills")
        threads.append(waiting(pool))
    assert threads == [1, 2, 3, 4, 5, 6]
    pool.close(5)


def test_a_job_that_never_returns_counts_though_its_pool_has_room() -> None:
    pool = Workers("stuck", 8)
    with held(pool, 4):
        pass
    assert rests(pool, "stuck")
    with held(pool, 1), held(pool, 1), held(pool, 1):
        assert working(pool, "stuck") == 3
        assert waiting(pool) == 1
    pool.close(5)


def test_a_thread_beyond_the_bound_counts_though_it_waits() -> None:
    pool = Workers("beyond", 5)
    with held(pool, 5):
        pass
    assert rests(pool, "beyond")
    pool._limit = 3
    assert working(pool, "beyond") == 2
    pool.close(5)


def test_a_pool_whose_own_count_is_wrong_hides_no_thread_but_its_own() -> None:
    pool = Workers("wrong", 5)
    with held(pool, 2):
        pass
    assert rests(pool, "wrong")
    pool._idle += 9
    assert waiting(pool) == 2
    pool._idle -= 9
    pool.close(5)


def test_only_threads_that_wait_in_a_pool_are_left_out() -> None:
    pool = Workers("left", 2)
    with held(pool, 2):
        assert at_work([pool]) == at_work([])
    assert rests(pool, "left")
    assert at_work([]) - at_work([pool]) == 2
    pool.close(5)
