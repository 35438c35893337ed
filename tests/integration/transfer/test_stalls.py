"""A process that stands still costs its own requests at most, and is the only one that is blamed for it."""

import statistics

import pytest
from msgspec.structs import replace

from tests.integration.transfer.ranks import Process, rooms
from tests.integration.transfer.wide import GIB, OPTIONS, ids, pages_of, pair, serve, start

pytestmark = pytest.mark.integration

FROZEN_ROOMS = 12
PAGES = pages_of(GIB // 8)
SAMPLES = 15
GAP_S = 0.1
FLOOR_S = 0.05
"""Medians below this count as this: a thread's bad luck is no stall."""
OTHERS_PAGES = 16

SILENT_S = 1.5
HELD_S = 3.5


def median_of_others(prefill: Process, decode: Process) -> float:
    """Seconds from `send` to the confirmation of a small request, one sent every GAP_S whatever becomes of it."""
    numbers = [next(rooms) for _ in range(SAMPLES)]
    for room in numbers:
        decode.call("open", room, prefill.call("address"), ids(OTHERS_PAGES))
    return statistics.median(prefill.call("timed", numbers, ids(OTHERS_PAGES), GAP_S))


@pytest.mark.parametrize(("way", "tp"), [("direct", 1), ("packed", 2)])
def test_rooms_of_a_frozen_decode_do_not_slow_down_another(way: str, tp: int) -> None:
    """Fails if whoever waits for the frozen one keeps the threads or the scratch that all need. It is thawed before it
    counts as silent, so its own requests are served in the end.
    """
    options = replace(OPTIONS, silent_s=30)
    with pair(1, tp, PAGES, options) as (prefill, frozen):
        healthy = start("decode", tp, options=options).ready()
        try:
            serve(prefill, healthy)
            assert prefill.call("ways") == {way}
            before = median_of_others(prefill, healthy)
            numbers = [next(rooms) for _ in range(FROZEN_ROOMS)]
            for room in numbers:
                frozen.call("open", room, prefill.call("address"), ids(PAGES, turned=True))
                prefill.call("open", room)
                assert prefill.call("wait_state", room, "waiting")
            frozen.freeze()
            for room in numbers:
                prefill.call("resume", room, ids(PAGES))
            during = median_of_others(prefill, healthy)
            frozen.thaw()
            print(f"median {before * 1e3:.1f} ms before, {during * 1e3:.1f} ms beside the frozen one")
            assert during <= 2 * max(before, FLOOR_S)
            ends = [prefill.call("wait", room)[0][:2] for room in numbers]
            assert ends == [("confirmed", "")] * FROZEN_ROOMS
        finally:
            healthy.kill()


@pytest.mark.parametrize("stalled", ["prefill", "decode"])
def test_nobody_else_is_blamed_for_a_stall_of_ones_own(stalled: str) -> None:
    """An engine's long call into C holds the interpreter, and with it every thread of the core."""
    options = replace(OPTIONS, silent_s=SILENT_S, heartbeat_s=0.1)
    with pair(options=options) as (prefill, decode):
        room = next(rooms)
        decode.call("open", room, prefill.call("address"), ids(4))
        prefill.call("open", room)
        assert prefill.call("wait_state", room, "waiting")
        {"prefill": prefill, "decode": decode}[stalled].call("hold_interpreter", HELD_S)
        prefill.call("resume", room, ids(4))
        for side in (prefill, decode):
            ((state, code, blamed, cause),) = side.call("wait", room)
            assert state == "confirmed" or (code, blamed) == ("PD4005", stalled), cause
        assert decode.call("wait_reusable", room)
        assert prefill.call("wait_reusable", room)
        serve(prefill, decode)
