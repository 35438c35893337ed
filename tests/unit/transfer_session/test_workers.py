"""Worker threads: bounded, replaced when a call hangs, gone when closed."""

import threading

import pytest

from pdctl_transfer.session.drive.workers import OVERSTAY_S, Workers

LANE = 3


def names(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_a_hung_job_does_not_hold_up_the_others() -> None:
    workers = Workers("hung", 1)
    release, started, done = threading.Event(), threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait(10)

    workers.submit(hang)
    workers.submit(done.set)
    assert started.wait(5)
    assert not done.wait(0.05)
    assert workers.abandon(hang) is False
    assert done.wait(5)
    release.set()
    workers.close(5)
    for thread in threading.enumerate():
        if thread.name.startswith("hung"):
            thread.join(5)
    assert names("hung") == []


def test_a_queued_job_that_is_abandoned_never_runs() -> None:
    workers = Workers("queued", 1)
    release, started, ran = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        release.wait(10)

    workers.submit(hold)
    assert started.wait(5)
    workers.submit(ran.set)
    assert workers.abandon(ran.set) is True
    release.set()
    workers.close(5)
    assert not ran.is_set()


def test_a_hung_job_is_replaced_once() -> None:
    workers = Workers("shared", 1)
    release, started, again = threading.Event(), threading.Event(), threading.Semaphore(0)

    def hang() -> None:
        started.set()
        release.wait(10)

    def wait() -> None:
        again.release()
        release.wait(10)

    workers.submit(hang)
    assert started.wait(5)
    for _ in range(3):
        workers.submit(wait)
    assert [workers.abandon(hang), workers.abandon(hang)] == [False, False]
    assert again.acquire(timeout=5)
    assert len(names("shared")) == 2
    release.set()
    workers.close(5)


def test_one_lane_never_holds_all_threads() -> None:
    """Eight jobs for a frozen peer, then one for a healthy one."""
    workers = Workers("lanes", 8)
    release, frozen, done = threading.Event(), threading.Semaphore(0), threading.Event()

    def hang() -> None:
        frozen.release()
        release.wait(10)

    jobs = [lambda: hang() for _ in range(12)]
    for job in jobs:
        workers.submit(job, {"frozen": LANE})
    for _ in range(LANE):
        assert frozen.acquire(timeout=5)
    workers.submit(done.set, {"healthy": LANE})
    assert done.wait(5)
    assert not frozen.acquire(timeout=0.05)
    release.set()
    for _ in range(12 - LANE):
        assert frozen.acquire(timeout=5)
    workers.close(5)


def test_threads_that_overstay_are_replaced() -> None:
    """As many frozen peers as threads: the next job does not wait for any of them."""
    workers = Workers("stay", 2)
    release, frozen, done = threading.Event(), threading.Semaphore(0), threading.Event()

    def hang() -> None:
        frozen.release()
        release.wait(30)

    for lane in range(2):
        workers.submit(hang, {str(lane): LANE})
        assert frozen.acquire(timeout=5)
    workers.submit(done.set, {"healthy": LANE})
    while not done.wait(OVERSTAY_S / 4):
        workers.relieve()
    release.set()
    workers.close(5)
    assert names("stay") == []


def test_never_more_threads_than_the_limit() -> None:
    workers = Workers("limit", 3)
    gate, seen = threading.Event(), threading.Semaphore(0)

    def job() -> None:
        seen.release()
        gate.wait(10)

    for _ in range(10):
        workers.submit(job)
    for _ in range(3):
        assert seen.acquire(timeout=5)
    assert not seen.acquire(timeout=0.05)
    assert len(names("limit")) == 3
    gate.set()
    for _ in range(7):
        assert seen.acquire(timeout=5)
    workers.close(5)
    assert names("limit") == []


def test_a_job_that_raises_costs_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    workers = Workers("raises", 1)
    done = threading.Event()

    def broken() -> None:
        raise ZeroDivisionError

    workers.submit(broken)
    workers.submit(done.set)
    workers.submit(done.set)
    assert done.wait(5)
    workers.close(5)
