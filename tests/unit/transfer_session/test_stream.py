"""One worker writes to all decode ranks of a room: exact, in turns, honest when one fails, never in another's way."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl_transfer.fabric.base import Blocks, WriteResult
from pdctl_transfer.fabric.memory import MemoryFabric, MemoryWriting
from pdctl_transfer.session.drive import landing
from tests.unit.transfer_session.test_requests import end
from tests.unit.transfer_session.world import FAST, World, manifest

PIECES = replace(FAST, chunk_bytes=512, transfer_s=20)
"""So small that a request has many pieces."""


@pytest.fixture(autouse=True)
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "choose", lambda *args, **more: "packed")


def scratch(w: World) -> range:
    area = next(iter(w.prefill.values()))[0]._driver.scratch
    return range(area.base(0), area.base(area.slots))


class Crossed(MemoryFabric):
    """Every other gathered write ends only after the one begun behind it was seen to end.

    So it is between two streams on Mooncake: a peer takes two writes at a time, one that has ended counts until
    somebody looks, and what one stream waits for may be what the other has not looked at.
    """

    gathered = range(0)

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[MemoryWriting] = []

    def begin(self, peer: Any, blocks: Blocks) -> MemoryWriting:
        writing = super().begin(peer, blocks)
        if int(blocks.src[0]) in self.gathered:
            number = len(self.begun)
            self.begun.append(writing)
            looks = 0

            def look() -> WriteResult | None:
                nonlocal looks
                looks += 1
                behind = self.begun[number + 1 : number + 2]
                if looks < 2 or (number % 2 == 0 and not any(hasattr(other, "ended") for other in behind)):
                    return None
                writing.ended = True  # type: ignore[attr-defined]
                return MemoryWriting.look(writing)

            writing.look = look  # type: ignore[method-assign]
        return writing


def test_a_stream_looks_at_all_its_writes() -> None:
    with World(manifest("prefill", 1), manifest("decode", 4), PIECES, Crossed) as w:
        w.fabrics[0].gathered = scratch(w)
        senders, receivers, wrong = w.transfer(pages=16)
        assert [handle.wait(20) for handle in [*senders, *receivers]] == ["confirmed"] * 5
        assert wrong() == []
        assert len(w.fabrics[0].begun) % 2 == 0
        assert len(w.fabrics[0].begun) > 16


def test_ranks_take_turns() -> None:
    order: list[tuple[str, int]] = []

    class Noted(MemoryFabric):
        def begin(self, peer: Any, blocks: Blocks) -> MemoryWriting:
            order.append((peer.name, int(blocks.src[0])))
            return super().begin(peer, blocks)

    with World(manifest("prefill", 1), manifest("decode", 4), PIECES, Noted) as w:
        _, receivers, wrong = w.transfer()
        assert {handle.wait(10) for handle in receivers} == {"confirmed"}
        assert wrong() == []
        gathered = [name for name, src in order if src in scratch(w)]
    assert len(gathered) >= 8
    assert [len(set(gathered[at : at + 4])) for at in (0, 4)] == [4, 4]


@pytest.mark.code("PD4012")
@pytest.mark.parametrize("failing", [0, 3])
def test_one_rank_that_fails_ends_the_room_at_once(failing: int) -> None:
    """With its own cause on both sides, and what is still on the wire to the others is left, not waited for."""
    begun: list[str] = []

    class Broken(MemoryFabric):
        def begin(self, peer: Any, blocks: Blocks) -> MemoryWriting:
            begun.append(peer.name)
            writing = super().begin(peer, blocks)
            broken = WriteResult(ok=False, settled=True, code="PD4012", cause="broken")
            answer = broken if len(begun) == failing + 1 else None  # whose turn it is, is a matter of who asked first
            writing.look = lambda: answer  # type: ignore[method-assign]
            writing.rest = lambda deadline: time.sleep(0.001)  # type: ignore[method-assign]
            return writing

    with World(manifest("prefill", 1), manifest("decode", 4), PIECES, Broken) as w:
        began = time.monotonic()
        senders, receivers, _ = w.transfer()
        assert {end(handle)[0] for handle in [*senders, *receivers]} == {"PD4012"}
        assert time.monotonic() - began < 10
        assert all(handle.wait_reusable(10) for handle in [*senders, *receivers])
        prefill = next(iter(w.prefill.values()))[0]
        assert prefill._driver.scratch.free == prefill._driver.scratch.slots


def test_a_stream_without_scratch_ends() -> None:
    """All of it in quarantine: every rank hears of it before the request's own time is over."""
    soon = replace(PIECES, waiting_s=1.0, transfer_s=1.0)
    with World(manifest("prefill", 1), manifest("decode", 4), soon) as w:
        area = next(iter(w.prefill.values()))[0]._driver.scratch
        taken = []
        while (slot := area.take(object())) is not None:
            taken.append(slot)
        senders, receivers, _ = w.transfer()
        assert {end(handle)[0] for handle in [*senders, *receivers]} <= {"PD4041", "PD4031"}
        for slot in taken:
            area.give(slot)
        senders, receivers, _ = w.transfer(seed=1)
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"confirmed"}


def test_a_stream_leaves_scratch_for_others() -> None:
    """All four ranks of an engine are frozen: what it holds for as long as it likes must not be all there is."""

    class Frozen(MemoryFabric):
        def begin(self, peer: Any, blocks: Blocks) -> MemoryWriting:
            writing = super().begin(peer, blocks)
            writing.look = lambda: None  # type: ignore[method-assign]
            writing.rest = lambda deadline: time.sleep(0.001)  # type: ignore[method-assign]
            return writing

    with World(manifest("prefill", 1), manifest("decode", 4), PIECES, Frozen) as w:
        area = next(iter(w.prefill.values()))[0]._driver.scratch
        requests = [w.transfer(seed=seed) for seed in range(3)]
        while any(handle.state != "transferring" for senders, _, _ in requests[:1] for handle in senders):
            time.sleep(0.01)
        time.sleep(0.2)
        assert area.free >= area.reserve > 0
        assert area.take("somebody else") is not None
        for senders, receivers, _ in requests:
            for handle in [*senders, *receivers]:
                handle.abort("enough")
        area.give(*[slot for slot, owner in area._pool._lent.items() if owner == "somebody else"])
