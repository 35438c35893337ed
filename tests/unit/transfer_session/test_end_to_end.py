"""Whole transfers over the in-process fabric."""

import pytest

from tests.unit.transfer_session.world import World, manifest


@pytest.mark.parametrize(
    ("src", "dst"), [((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 1), (4, 1)), ((2, 2), (4, 1)), ((2, 2), (1, 2))]
)
def test_every_rank_gets_its_slice_and_nothing_else(src: tuple[int, int], dst: tuple[int, int]) -> None:
    with World(manifest("prefill", *src), manifest("decode", *dst)) as world:
        senders, receivers, wrong = world.transfer()
        assert [h.wait(10) for h in receivers] == ["confirmed"] * len(receivers), [h.failure for h in receivers]
        assert [h.wait(10) for h in senders] == ["confirmed"] * len(senders), [h.failure for h in senders]
        assert wrong() == []
        assert {h.metadata for h in receivers} == {b"meta"}
        assert all(h.reusable for h in [*senders, *receivers])
