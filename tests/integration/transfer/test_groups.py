"""Attention-DP groups: a room is found at the group that serves it, at once and again."""

import pytest
from msgspec.structs import replace

from tests.integration.transfer.conversation import Conversation
from tests.unit.transfer_session.world import FAST, World, manifest

OPTIONS = replace(FAST, bootstrap_s=10)


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_the_first_request_right_after_the_start_is_served(first: str) -> None:
    """Fails if what a rank says of its rooms is lost where its registration is not through yet. Ten starts of ten."""
    for start in range(10):
        with World(manifest("prefill", 1, dp=2), manifest("decode", 1), OPTIONS) as made:
            room = Conversation(made, dp=start % 2)
            for step in (room.expect, room.ask) if first == "prefill" else (room.ask, room.expect):
                step()
            room.send()
            room.confirmed(5.0)


@pytest.mark.parametrize("prefill_tp", [2, 4])
def test_a_room_number_may_be_used_again_by_another_group(prefill_tp: int) -> None:
    """Decode asks first: the registry still knows the group that served the number before."""
    with World(manifest("prefill", prefill_tp // 2, dp=2), manifest("decode", 1), OPTIONS) as made:
        Conversation(made, dp=0, room=7).run().confirmed(5.0)
        for dp in (1, 0, 0, 1):
            again = Conversation(made, dp=dp, room=7)
            again.ask()
            again.expect()
            again.send()
            again.confirmed(5.0)
