"""Many requests at once: all end, share what is scarce, and leave nothing."""

import pytest
from msgspec.structs import replace

from tests.integration.transfer.ranks import Spec, indices, pair, rooms
from tests.integration.transfer.soak import SOAK, soak
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration


def test_64_requests_of_which_every_tenth_is_aborted() -> None:
    """With a staging area of two slots, so that nearly all of them wait for one."""
    options = replace(SOAK, staging_bytes=2 << 16, chunk_bytes=1 << 16)
    here, there = manifest("prefill", 2, scale=64), manifest("decode", 1, scale=64)
    items = 64 * 6
    specs = [Spec(m, tuple(ranks(m)), options=options, items=items) for m in (here, there)]
    with pair(*specs) as (prefill, decode):
        at = prefill.call("address")
        numbers = [next(rooms) for _ in range(64)]
        ids = {}
        for slot, room in enumerate(numbers):
            drawn = indices(room, 6, 6)
            ids[room] = {kind: [slot * 6 + i for i in values] for kind, values in drawn.items()}
            decode.call("open", room, at, ids[room])
        for i, room in enumerate(numbers):
            prefill.call("send", room, ids[room])
            if i % 10 == 0:
                (decode if i % 20 else prefill).call("abort", room)
        for i, room in enumerate(numbers):
            ends = prefill.call("wait", room, 60.0, timeout=70) + decode.call("wait", room, 60.0, timeout=70)
            if i % 10:
                assert {end[0] for end in ends} == {"confirmed"}, ends
                assert decode.call("wrong", room, ids[room]) == []
            else:
                assert {end[1] for end in ends if end[0] == "failed"} <= {"PD4033"}
            assert prefill.call("wait_reusable", room)
            assert decode.call("wait_reusable", room)
        assert decode.call("free_slots") == [2]
        for process in (prefill, decode):
            usage = process.call("usage")
            assert usage["rooms"] == usage["kept"] == 0
        assert any('way="staged"' in text for text in prefill.call("metrics"))


@pytest.mark.timeout(300)
def test_soak_for_a_while() -> None:
    assert soak(40.0).faults == []
