"""Pages that are said to be reusable are given to a new owner at once: no byte of his may be overwritten.

Mooncake writes on for seconds after its caller has let go. Whatever ends a request in the middle, both sides say that
its pages are free only when that is over; and they do say it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.transfer.ranks import Process
from tests.integration.transfer.sockets import Break
from tests.integration.transfer.wide import GIB, ask, pages_of, pair, serve, start

pytestmark = pytest.mark.integration

LONG, SHORT = pages_of(5 * GIB // 2), pages_of(GIB)
"""What takes Mooncake seconds, and what takes it long enough to be in the middle of it."""
FREE_WITHIN_S = 45.0
WATCH_S = 2.0
RUN_IN_S = 0.15
"""For which a transfer has run when something befalls it."""


@contextmanager
def moving(pages: int) -> Iterator[tuple[Process, Process, int]]:
    """A pair in the middle of a request of so many pages."""
    with pair(pages=pages) as (prefill, decode):
        room = ask(prefill, decode, pages)
        assert prefill.call("wait_state", room, "transferring")
        assert decode.call("wait_state", room, "transferring")
        time.sleep(RUN_IN_S)
        assert decode.call("wait", room, 0.0)[0][0] == "transferring", "too short to act in the middle of it"
        yield prefill, decode, room


def reused(decode: Process, room: int) -> None:
    """The pages become free, hold what was confirmed, and stay the next owner's."""
    took, wrong, overwritten = decode.call("reuse", room, FREE_WITHIN_S, WATCH_S, timeout=FREE_WITHIN_S + 10)
    assert took >= 0, "the pages never became reusable"
    assert wrong == 0, "confirmed, and not what was sent"
    assert overwritten == 0, f"{overwritten} bytes of the next owner overwritten"


@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("how", ["reset", "half-close"])
def test_control_connection_breaks(how: Break, side: str) -> None:
    """Nobody's fault and nobody's end: both processes live."""
    with moving(SHORT) as (prefill, decode, room):
        ports = prefill.call("control_ports")
        assert {"prefill": prefill, "decode": decode}[side].call("break_connections", how, ports) > 0
        reused(decode, room)
        assert prefill.call("wait_reusable", room, FREE_WITHIN_S)
        serve(prefill, decode)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_abort(side: str) -> None:
    with moving(SHORT) as (prefill, decode, room):
        {"prefill": prefill, "decode": decode}[side].call("abort", room)
        reused(decode, room)
        assert prefill.call("wait_reusable", room, FREE_WITHIN_S)
        serve(prefill, decode)


def test_prefill_closes() -> None:
    """Nobody listens for it any more, and Mooncake goes on: that decode is refused proves nothing."""
    with moving(LONG) as (prefill, decode, room):
        prefill.post("close_until_free", FREE_WITHIN_S)
        reused(decode, room)
        assert prefill.result(FREE_WITHIN_S + 10), "close never said that memory may be freed"


def test_decode_closes() -> None:
    """What it says decides: once it says that memory may be freed, nothing lands there."""
    with moving(LONG) as (prefill, decode, room):
        overwritten = decode.call("close_and_reuse", FREE_WITHIN_S, WATCH_S, timeout=FREE_WITHIN_S + 10)
        assert overwritten >= 0, "close never said that memory may be freed"
        assert overwritten == 0, f"{overwritten} bytes of the next owner overwritten"
        assert prefill.call("wait_reusable", room, FREE_WITHIN_S)
        succeeded(prefill)


def test_prefill_killed() -> None:
    with moving(SHORT) as (prefill, decode, room):
        prefill.kill()
        reused(decode, room)


def test_decode_killed() -> None:
    with moving(SHORT) as (prefill, decode, room):
        decode.kill()
        assert prefill.call("wait_reusable", room, FREE_WITHIN_S)
        succeeded(prefill)


def succeeded(prefill: Process) -> None:
    """Another decode is served."""
    successor = start("decode").ready()
    try:
        serve(prefill, successor)
    finally:
        successor.kill()
