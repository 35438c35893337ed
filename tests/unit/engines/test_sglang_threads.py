"""The threads beside SGLang's scheduler: calls in order, looks until they are over, and nothing left when idle."""

import threading
import time
from collections.abc import Callable

import pytest

from pdctl_transfer.plugins import sglang_threads
from pdctl_transfer.plugins.sglang_threads import Behind, Watch


def names() -> list[str]:
    """Threads of ours."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pdctl-")]


def until(condition: Callable[[], bool]) -> None:
    """Wait for it, at most ten seconds."""
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_calls_keep_their_order_behind_one_that_waits() -> None:
    behind, may, seen = Behind(), threading.Event(), list[int]()

    def first() -> None:
        may.wait(10)
        seen.append(0)

    behind.call(first, waits=True)
    for number in range(1, 20):
        behind.call(lambda number=number: seen.append(number), waits=number % 3 == 0)  # type: ignore[misc]
    assert seen == []
    may.set()
    until(lambda: len(seen) == 20)
    assert seen == list(range(20))


def test_what_does_not_wait_needs_no_thread() -> None:
    seen: list[str] = []
    Behind().call(lambda: seen.append(threading.current_thread().name), waits=False)
    assert seen == [threading.current_thread().name]


def test_threads_end_when_idle_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_threads, "LINGER_S", 0.01)
    behind, watch = Behind(), Watch()
    for _ in range(3):
        looks, called = iter((True, True, False)), threading.Event()
        watch.add(lambda looks=looks: next(looks))  # type: ignore[misc]
        behind.call(called.set, waits=True)
        assert called.wait(10)
        until(lambda: names() == [])
        assert next(looks, "over") == "over"
