"""Decode processes that die in the middle of packed writes: prefill's scratch comes back, whoever is next is served."""

import time
from collections import deque

import pytest

from tests.integration.transfer.ranks import Process
from tests.integration.transfer.wide import GIB, ask, pages_of, pair, serve, start

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

KILLED = 10
"""More than there are slots of scratch."""
AT_ONCE = 3
"""Processes that start while another is killed."""
PAGES = pages_of(2 * GIB)
BACK_WITHIN_S = 30.0


def free_scratch(prefill: Process) -> float:
    """Slots of prefill's one rank that a packed write could have now."""
    (free,) = prefill.call("gauge", "scratch_free_slots")
    return float(free)


def kill_in_the_middle(prefill: Process, decode: Process) -> None:
    """A request of two ranks is being packed and written when their process dies."""
    room = ask(prefill, decode, PAGES)
    assert prefill.call("wait_state", room, "transferring")
    time.sleep(0.1)
    assert prefill.call("wait", room, 0.0)[0][0] == "transferring", "too short to kill somebody in the middle of it"
    decode.kill()
    ((state, code, side, _),) = prefill.call("wait", room)
    assert (state, side) == ("failed", "decode"), code


def test_ten_decodes_killed_in_turn_cost_no_scratch() -> None:
    with pair(1, 2, pages=PAGES) as (prefill, first):
        assert prefill.call("ways") == {"packed"}
        before = free_scratch(prefill)
        assert before > 0
        waiting = deque([first])
        try:
            for n in range(KILLED):
                while len(waiting) < min(AT_ONCE, KILLED - n):
                    waiting.append(start("decode", 2, PAGES))
                kill_in_the_middle(prefill, waiting[0] if n == 0 else waiting[0].ready())
                waiting.popleft()
            end = time.monotonic() + BACK_WITHIN_S
            while (free := free_scratch(prefill)) < before and time.monotonic() < end:
                time.sleep(0.1)
            assert free == before, f"{free:.0f} of {before:.0f} slots came back"
            waiting.append(start("decode", 2, PAGES))
            serve(prefill, waiting[0].ready(), PAGES)
        finally:
            for process in waiting:
                process.kill()
