"""A pair in one process: what ends a request without success ends it on both sides, with a code, and leaks nothing."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from pdctl.engines.reference.request import Bootstrap, Request
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.scheduler import Scheduler
from pdctl.engines.reference.server.metrics import events, exposition
from pdctl_transfer.session import Options
from tests.integration.reference.harness import ALONE, Pair, alone, pair, prompts, result, start

LONG = Sampling(max_new_tokens=2000, temperature=0, ignore_eos=True)
TINY = replace(ALONE, max_total_tokens=512, max_running=2)


def all_free(side: Scheduler) -> bool:
    """Whether every page and slot can be taken again."""
    allocator = side.engine.groups[0].allocator
    allocator.sweep()
    sizes = allocator.sizes
    return (allocator.free_pages, allocator.free_slots) == (sizes.page, sizes.slot)


def wait_until(condition: Any, timeout: float = 30) -> None:
    step = threading.Event()
    for _ in range(int(timeout / 0.02)):
        if condition():
            return
        step.wait(0.02)
    raise AssertionError("it did not happen")


def assert_clean(both: Pair) -> None:
    wait_until(lambda: all_free(both.prefill) and all_free(both.decode))


def test_more_requests_than_places_all_end_and_give_their_places_back() -> None:
    """Fails if a place is lost, or if a request that waits for one is forgotten."""
    batch = prompts(9, 5, 120)
    with alone(TINY) as engine:
        wanted = [result(start(engine, prompt).wait()) for prompt in batch]
    with pair(TINY, TINY) as both:
        assert [result(one) for one in both.run(batch, at_once=9)] == wanted
        assert_clean(both)


def test_seeded_sampling_continues_in_decode_as_in_one_engine() -> None:
    """Fails if the random choice depends on state that prefill keeps for itself."""
    sampling = Sampling(max_new_tokens=12, temperature=1.0, top_p=0.9, sampling_seed=11)
    batch = prompts(2, 20, 60)
    with alone() as engine:
        wanted = [result(start(engine, prompt, sampling).wait()) for prompt in batch]
    with pair() as both:
        assert [result(one) for one in both.run(batch, sampling)] == wanted


@pytest.mark.code("PD3052")
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_an_abort_on_one_side_ends_the_request_on_both(side: str) -> None:
    with pair(session=Options(bootstrap_s=2)) as both:
        aborted = both.prefill if side == "prefill" else both.decode
        bootstrap = Bootstrap("127.0.0.1", both.port, 41)
        mine = start(aborted, prompts(1, 300)[0], LONG, bootstrap)
        aborted.abort(mine.request.rid, "the client went away")
        other = start(both.decode if side == "prefill" else both.prefill, prompts(1, 300)[0], LONG, bootstrap)
        first, second = mine.wait().failure, other.wait().failure
        assert first is not None
        assert first.code == "PD3052"
        assert second is not None
        assert second.code.startswith("PD40")
        assert_clean(both)


@pytest.mark.code("PD3053")
def test_decode_refuses_the_state_of_another_prompt() -> None:
    with pair() as both:
        bootstrap = Bootstrap("127.0.0.1", both.port, 42)
        start(both.prefill, b"one prompt", bootstrap=bootstrap)
        request = start(both.decode, b"an0ther on", bootstrap=bootstrap).wait()
        assert request.failure is not None
        assert request.failure.code == "PD3053"
        assert request.output == []


@pytest.mark.code("PD3051")
def test_a_request_that_can_never_fit_is_refused_at_once() -> None:
    with alone(TINY) as engine:
        failure = start(engine, (1,) * 400, Sampling(max_new_tokens=200)).wait().failure
    assert failure is not None
    assert (failure.code, failure.status) == ("PD3051", 400)


@pytest.mark.code("PD3055")
def test_output_that_is_no_number_is_a_failure() -> None:
    """Fails if damaged state becomes tokens: every one of them would be noise."""
    with alone() as engine:
        engine.engine.model._head.fill_(float("nan"))
        failure = start(engine, b"hello").wait().failure
    assert failure is not None
    assert failure.code == "PD3055"


@pytest.mark.code("PD3056")
def test_requests_under_way_are_told_that_the_engine_stops() -> None:
    with alone() as engine:
        flight = start(engine, b"hello", LONG)
    failure = flight.wait().failure
    assert failure is not None
    assert (failure.code, failure.status) == ("PD3056", 503)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_the_engine_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(request: Request) -> None:
        raise ZeroDivisionError

    with alone() as engine:
        monkeypatch.setattr(engine.engine, "decode", broken)
        first = start(engine, b"hello").wait().failure
        engine._thread.join(10)
        late = start(engine, b"hello").wait().failure
        assert not engine.alive
    assert [failure.code for failure in (first, late) if failure] == ["PD3056", "PD3056"]


def test_a_prefill_that_nobody_asks_gives_up_and_frees_its_pages() -> None:
    with pair(session=Options(bootstrap_s=0.5)) as both:
        request = start(both.prefill, b"hello", bootstrap=Bootstrap("127.0.0.1", both.port, 43)).wait()
        assert request.failure is not None
        assert request.failure.code.startswith("PD40")
        assert_clean(both)


def test_unequal_page_sizes_are_refused_before_anything_moves() -> None:
    """The engine that lives through it is the point: the field's engines die of it."""
    with pair(ALONE, replace(ALONE, page_size=32), session=Options(bootstrap_s=5)) as both:
        prefill, decode = both.start(prompts(1, 40)[0])
        failures = [decode.wait().failure, prefill.wait().failure]
        assert [failure.code for failure in failures if failure] == ["PD1001", "PD1001"]
        assert_clean(both)


def test_metrics_and_events_cover_every_rank_once() -> None:
    """A second TYPE line of one metric makes Prometheus drop the whole scrape."""
    with pair(replace(ALONE, tp=2), ALONE) as both:
        both.run(prompts(1, 40))
        text = exposition(both.prefill).decode()
        assert events(both.prefill, 0)
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert {f'rank="pp0/tp{rank}"' in text for rank in (0, 1)} == {True}
    assert "pdctl_transfer_bytes_total" in text
