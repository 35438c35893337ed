"""Whole transfers over the in-process fabric."""

import pytest
from msgspec.structs import replace

from pdctl_transfer.session.bytes.cost import Load
from pdctl_transfer.session.drive import landing
from pdctl_transfer.session.options import Way
from tests.unit.transfer_session.world import FAST, World, manifest, spaced

SIZES = [((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 1), (4, 1)), ((2, 2), (4, 1)), ((4, 2), (2, 2)), ((2, 1), (2, 2))]


@pytest.mark.parametrize("gap", [0, 24])
@pytest.mark.parametrize("way", [None, "direct", "packed", "staged"])
@pytest.mark.parametrize(("src", "dst"), SIZES)
def test_every_rank_gets_its_slice_and_nothing_else(
    src: tuple[int, int], dst: tuple[int, int], way: Way | None, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way the bytes travel. Small chunks, so that there are many, and fewer slots than chunks."""
    if way is not None:
        monkeypatch.setattr(landing, "choose", lambda load, *rest, **more: possible(way, load))
    options = replace(FAST, chunk_bytes=4096, staging_bytes=16384, verify="full")
    with World(manifest("prefill", *src), manifest("decode", *dst), options, memory=spaced(gap=gap)) as world:
        senders, receivers, wrong = world.transfer()
        assert [h.wait(10) for h in receivers] == ["confirmed"] * len(receivers), [h.failure for h in receivers]
        assert [h.wait(10) for h in senders] == ["confirmed"] * len(senders), [h.failure for h in senders]
        assert wrong() == []
        assert all(buffers.gaps_untouched() for _, buffers in world.decode.values())
        assert {h.metadata for h in receivers} == {b"meta"}
        assert all(h.reusable for h in [*senders, *receivers])


def possible(way: Way, load: Load) -> Way:
    if way == "packed" and any(strip.dst_run < 0 for strip in load.strips):
        return "staged"
    return way
