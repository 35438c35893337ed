"""A pair that cannot work: every rank of both sides hears so, with one code, as soon as anybody knows."""

import time

import pytest
from msgspec.structs import replace

from tests.integration.transfer.conversation import Conversation
from tests.unit.transfer_session.world import FAST, World, manifest

AT_ONCE_S = 5.0


@pytest.mark.code("PD1001")
@pytest.mark.parametrize(
    ("prefill_tp", "prefill_pp", "decode_tp", "decode_pp"),
    [(4, 1, 1, 1), (2, 1, 1, 1), (1, 1, 4, 1), (1, 2, 1, 1), (2, 2, 2, 1), (2, 2, 2, 2)],
)
@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_all_ranks_of_a_refused_pair_hear_the_same_code_at_once(
    prefill_tp: int, prefill_pp: int, decode_tp: int, decode_pp: int, first: str
) -> None:
    """Fails if only the rank whose link was judged first hears why, and the others blame decode after bootstrap_s."""
    src = manifest("prefill", prefill_tp, prefill_pp, page_size=16)
    dst = manifest("decode", decode_tp, decode_pp, page_size=32)
    with World(src, dst, replace(FAST, bootstrap_s=60)) as made:
        room = Conversation(made)
        began = time.monotonic()
        for step in (room.expect, room.ask) if first == "prefill" else (room.ask, room.expect):
            step()
        room.send()
        for handle in room.handles:
            handle.wait(max(0.0, began + AT_ONCE_S - time.monotonic()))
        assert {handle.failure and handle.failure.code for handle in room.handles} == {"PD1001"}, room.said
        assert all(handle.wait_reusable(1.0) for handle in room.handles)
