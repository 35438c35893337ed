"""Whole transfers between processes, over both fabrics."""

import pytest

from tests.integration.transfer.ranks import Spec, indices, pair, rooms
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("fabric", ["mooncake", "nixl"])
@pytest.mark.parametrize(("src", "dst"), [((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 2), (2, 1))])
def test_state_arrives_whole(fabric: str, src: tuple[int, int], dst: tuple[int, int]) -> None:
    """TP and PP unequal, a process a side, bytes over loopback TCP as the kernel sees it."""
    here, there = manifest("prefill", *src, scale=64), manifest("decode", *dst, scale=64)
    with pair(Spec(here, tuple(ranks(here)), fabric), Spec(there, tuple(ranks(there)), fabric)) as (prefill, decode):
        for pages in (1, 30):
            room = next(rooms)
            ours, theirs = indices(room, 64, pages), indices(room + 1000, 64, pages)
            decode.call("open", room, prefill.call("address"), theirs)
            prefill.call("send", room, ours)
            assert {end[0] for end in decode.call("wait", room) + prefill.call("wait", room)} == {"confirmed"}
            assert decode.call("wrong", room, theirs) == []
        assert prefill.call("observed") == {"tcp"}
