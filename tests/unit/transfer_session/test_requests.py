"""What ends a request, and that late, repeated and misplaced messages end nothing else."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Blocks, WriteResult
from pdctl_transfer.fabric.memory import MemoryFabric, MemoryWriting
from pdctl_transfer.session import DecodePeer, Options, Rank
from pdctl_transfer.session.bytes.copier import NumpyCopier
from pdctl_transfer.session.drive import landing
from pdctl_transfer.session.handles import METADATA_BYTES
from pdctl_transfer.session.wire.messages import (
    Ask,
    Confirm,
    Done,
    Failed,
    Grant,
    Landed,
    Lookup,
    Ready,
    Settled,
    Start,
    Withdraw,
)
from tests.unit.transfer_session.world import FAST, Buffers, World, indices, manifest, rooms, threads_left

SHORT = replace(FAST, bootstrap_s=2.0, waiting_s=2.0, transfer_s=2.0)


def world(options: Options = SHORT, **more: Any) -> World:
    return World(manifest("prefill", 1), manifest("decode", 1), options, **more)


def only(side: dict[Rank, tuple[Any, Buffers]]) -> tuple[Any, Buffers]:
    (pair,) = side.values()
    return pair


def ids(seed: int = 0, pages: int = 3) -> dict[str, list[int]]:
    return indices(np.random.default_rng(seed), 64, pages)


def over(handle: Any) -> tuple[str, str, str]:
    return handle.wait(10), handle.failure.code, handle.failure.side


def end(handle: Any) -> tuple[str, str]:
    assert handle.wait(10) == "failed"
    return handle.failure.code, handle.failure.side


@pytest.mark.code("PD4001")
def test_no_registry() -> None:
    with world() as w:
        handle = only(w.decode)[0].open(1, ("127.0.0.1", 9), ids())
        assert end(handle) == ("PD4001", "prefill")
        assert "127.0.0.1:9" in handle.failure.cause
        assert handle.reusable


@pytest.mark.code("PD4002")
def test_a_rank_that_never_registered() -> None:
    with World(manifest("prefill", 2), manifest("decode", 1), SHORT) as w:
        w.prefill[Rank(0, 1)][0].close()
        handle = only(w.decode)[0].open(1, w.at, ids())
        assert end(handle) == ("PD4002", "prefill")
        assert "pp0/tp1" in handle.failure.cause


@pytest.mark.code("PD4003")
def test_a_rank_that_cannot_be_reached() -> None:
    """Registered, with an address where nobody listens."""
    options = replace(SHORT, advertise="127.0.0.2")
    with world(options) as w:
        handle = only(w.decode)[0].open(1, w.at, ids())
        assert end(handle) == ("PD4003", "prefill")


@pytest.mark.code("PD4032")
def test_a_room_that_prefill_never_opens() -> None:
    with world() as w:
        assert end(only(w.decode)[0].open(1, w.at, ids())) == ("PD4032", "prefill")


@pytest.mark.code("PD4032")
def test_a_room_that_decode_never_asks_for() -> None:
    with world() as w:
        handle = only(w.prefill)[0].open(1)
        handle.send(ids())
        assert end(handle) == ("PD4032", "decode")
        assert handle.reusable


@pytest.mark.code("PD4030")
def test_a_room_that_is_never_sent() -> None:
    """Both sides say that prefill is to blame."""
    with world() as w:
        room = next(rooms)
        sender, receiver = only(w.prefill)[0].open(room), only(w.decode)[0].open(room, w.at, ids())
        assert end(sender) == end(receiver) == ("PD4030", "prefill")
        assert sender.wait_reusable(30)
        assert receiver.wait_reusable(30)


@pytest.mark.code("PD4020")
def test_lists_of_unequal_length() -> None:
    with world() as w:
        room = next(rooms)
        receiver = only(w.decode)[0].open(room, w.at, ids(pages=3))
        sender = only(w.prefill)[0].open(room)
        sender.send(ids(pages=4))
        assert end(sender) == end(receiver) == ("PD4020", "prefill")
        assert "kv: 4 ids on prefill, 3 on decode" in receiver.failure.cause
        assert (only(w.decode)[1].arrays[0] == 0xEE).all()


@pytest.mark.code("PD4021")
@pytest.mark.parametrize("bad", [{"kv": [64]}, {"kv": [-1]}, {"mamba": [1, 2]}, {"qsa_pending": []}])
def test_ids_that_are_no_items(bad: dict[str, list[int]]) -> None:
    """On decode before anything is asked, on prefill before anything is written."""
    with world() as w:
        room = next(rooms)
        assert end(only(w.decode)[0].open(room, w.at, {**ids(), **bad})) == ("PD4021", "decode")
        receiver = only(w.decode)[0].open(room, w.at, ids(pages=len(bad.get("kv", "123"))))
        sender = only(w.prefill)[0].open(room)
        sender.send({**ids(pages=len(bad.get("kv", "123"))), **bad})
        assert end(sender)[0] == end(receiver)[0]
        assert end(sender)[0] in {"PD4021", "PD4020"}


@pytest.mark.code("PD4023")
def test_a_room_that_is_open_already() -> None:
    with world(FAST) as w:
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        room = next(rooms)
        first, second = prefill.open(room), prefill.open(room)
        assert end(second)[0] == "PD4023"
        receiver, again = decoder.open(room, w.at, ids()), decoder.open(room, w.at, ids())
        assert end(again)[0] == "PD4023"
        first.send(ids())
        assert receiver.wait(10) == first.wait(10) == "confirmed"


@pytest.mark.code("PD4023")
def test_two_decode_engines_that_ask_for_one_room() -> None:
    with world(FAST) as w:
        room = next(rooms)
        sender = only(w.prefill)[0].open(room)
        first = only(w.decode)[0].open(room, w.at, ids())
        while first.state == "bootstrapping":
            first.wait(0.01)
        buffers = Buffers(manifest("decode", 1), Rank(0, 0), 64)
        other = DecodePeer(buffers.manifest, Rank(0, 0), buffers.regions(), MemoryFabric(), FAST)
        try:
            assert end(other.open(room, w.at, ids()))[0] == "PD4023"
        finally:
            other.close()
        sender.send(ids())
        assert first.wait(10) == "confirmed"


@pytest.mark.code("PD4033", "PD4035")
@pytest.mark.parametrize(("how", "state", "code"), [("abort", "failed", "PD4033"), ("withdraw", "withdrawn", "PD4035")])
@pytest.mark.parametrize("side", ["prefill", "decode"])
@pytest.mark.parametrize("met", [True, False])
def test_what_one_side_gives_up_ends_on_both(side: str, met: bool, how: str, state: str, code: str) -> None:
    """Also where the other side opens the room only afterwards. What is withdrawn counts as no failure."""
    with world(FAST) as w:
        room = next(rooms)
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        if met or side == "prefill":
            sender = prefill.open(room)
        if met or side == "decode":
            receiver = decoder.open(room, w.at, ids())
        if met:
            while "bootstrapping" in {sender.state, receiver.state}:
                receiver.wait(0.01)
        elif side == "decode":
            while not prefill._driver.machine.legs:
                receiver.wait(0.01)
        getattr(sender if side == "prefill" else receiver, how)("the client left")
        assert over(sender if side == "prefill" else receiver) == (state, code, side)
        if not met and side == "prefill":
            receiver = decoder.open(room, w.at, ids())
        if not met and side == "decode":
            assert receiver.wait_reusable(30)
            sender = prefill.open(room)
        assert over(sender) == over(receiver) == (state, code, side)
        assert sender.wait_reusable(30)
        assert receiver.wait_reusable(30)
        for peer in (prefill, decoder):
            assert f'outcome="{state}"' in peer.telemetry.exposition()
            assert ("failures_total{" in peer.telemetry.exposition()) is (state == "failed")


@pytest.mark.code("PD4035")
@pytest.mark.parametrize("opened", ["before", "after"])
def test_decode_that_needs_nothing_says_so_without_giving_ids(opened: str) -> None:
    with world(FAST) as w:
        room, prefill, decoder = next(rooms), only(w.prefill)[0], only(w.decode)[0]
        if opened == "before":
            sender = prefill.open(room)
            sender.send(ids())
        receiver = decoder.decline(room, w.at, "all of it is cached")
        if opened == "after":
            assert over(receiver)[0] == "withdrawn"
            sender = prefill.open(room)
        assert over(sender) == over(receiver) == ("withdrawn", "PD4035", "decode")
        assert sender.wait_reusable(30)
        assert receiver.wait_reusable(30)
        assert "cached" in sender.failure.cause


@pytest.mark.parametrize("asked", ["before", "after"])
def test_decode_hears_at_once_of_a_room_that_prefill_refuses_and_the_number_serves_again(asked: str) -> None:
    with world(FAST) as w:
        room, prefill, decoder = next(rooms), only(w.prefill)[0], only(w.decode)[0]
        if asked == "before":
            receiver = decoder.open(room, w.at, ids())
            while not prefill._driver.machine.legs:
                receiver.wait(0.01)
        sender = prefill.refuse(room, "PD3140", "it broke")
        assert over(sender) == ("failed", "PD3140", "prefill")
        if asked == "after":
            receiver = decoder.open(room, w.at, ids())
        assert over(receiver) == ("failed", "PD3140", "prefill")
        assert "it broke" in receiver.failure.cause
        assert sender.wait_reusable(30)
        assert receiver.wait_reusable(30)
        again, asks = prefill.open(room), decoder.open(room, w.at, ids())
        again.send(ids())
        assert again.wait(10) == asks.wait(10) == "confirmed"


def test_prefill_hears_at_once_of_a_room_that_decode_refuses_and_the_number_serves_again() -> None:
    with world(FAST) as w:
        room, prefill, decoder = next(rooms), only(w.prefill)[0], only(w.decode)[0]
        sender = prefill.open(room)
        receiver = decoder.refuse(room, w.at, "PD3140", "it broke")
        assert over(receiver) == over(sender) == ("failed", "PD3140", "decode")
        assert "it broke" in sender.failure.cause
        assert sender.wait_reusable(30)
        assert receiver.wait_reusable(30)
        again, asks = prefill.open(room), decoder.open(room, w.at, ids())
        again.send(ids())
        assert again.wait(10) == asks.wait(10) == "confirmed"


@pytest.mark.code("PD4021")
def test_prefill_hears_at_once_of_ids_that_cannot_be() -> None:
    with world(FAST) as w:
        room = next(rooms)
        sender = only(w.prefill)[0].open(room)
        receiver = only(w.decode)[0].open(room, w.at, {**ids(), "kv": [1000]})
        assert end(sender) == end(receiver) == ("PD4021", "decode")


def test_prefill_hears_of_an_abort_that_came_before_its_ranks_were_known() -> None:
    with world(FAST) as w:
        decoder, room = only(w.decode)[0], next(rooms)
        sender = only(w.prefill)[0].open(room)
        decoder._driver.loop.call(time.sleep, 0.2)  # so that the request is given up in the moment in which it begins
        receiver = decoder.open(room, w.at, ids())
        receiver.abort("at once")
        assert end(sender) == end(receiver) == ("PD4033", "decode")


@pytest.mark.code("PD4034")
def test_close_fails_what_is_open() -> None:
    with world(FAST) as w:
        room = next(rooms)
        sender, receiver = only(w.prefill)[0].open(room), only(w.decode)[0].open(room, w.at, ids())
        while receiver.state == "bootstrapping":
            receiver.wait(0.01)
        only(w.prefill)[0].close()
        assert end(sender) == end(receiver) == ("PD4034", "prefill")


@pytest.mark.code("PD4034")
def test_what_is_opened_after_the_close_ends_at_once() -> None:
    """Nobody is left to end it later."""
    with world(FAST) as w:
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        assert prefill.close()
        assert decoder.close()
        sender, receiver = prefill.open(next(rooms)), decoder.open(next(rooms), w.at, ids())
        assert (end(sender), end(receiver)) == (("PD4034", "prefill"), ("PD4034", "decode"))
        assert sender.reusable
        assert receiver.reusable


def test_a_decode_rank_that_is_gone_is_forgotten() -> None:
    """Else each that restarts leaves its layout, its regions and its plan behind."""
    with world(FAST) as w:
        prefill = only(w.prefill)[0]
        _, receivers, _ = w.transfer()
        assert receivers[0].wait(10) == "confirmed"
        assert len(prefill._driver._partners) == 1
        assert only(w.decode)[0].close()
        deadline = time.monotonic() + 10
        while prefill._driver._partners and time.monotonic() < deadline:
            time.sleep(0.01)
        assert prefill._driver._partners == prefill._driver.machine.lost == {}


class Failing(MemoryFabric):
    """Fails each write in a way after which it may go on writing, until it is told to prove that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.drained = threading.Event()

    def begin(self, peer: MemoryFabric, blocks: Blocks) -> MemoryWriting:
        writing = super().begin(peer, blocks)
        writing.look = lambda: WriteResult(ok=False, settled=False, code="PD4011", cause="broken")  # type: ignore[method-assign]
        return writing

    def settle(self, peer: MemoryFabric) -> bool:
        return self.drained.wait(0.05)


@pytest.mark.code("PD4011")
def test_buffers_stay_in_quarantine_until_the_fabric_has_drained() -> None:
    with world(FAST, fabric=Failing) as w:
        senders, receivers, _ = w.transfer()
        assert end(senders[0])[0] == end(receivers[0])[0] == "PD4011"
        assert not senders[0].wait_reusable(0.5)
        assert not receivers[0].reusable
        assert only(w.decode)[0].quarantined == 1
        for fabric in w.fabrics:
            fabric.drained.set()
        assert senders[0].wait_reusable(30)
        assert receivers[0].wait_reusable(30)
        assert only(w.decode)[0].quarantined == 0


@pytest.mark.code("PD4012")
def test_memory_that_is_no_longer_registered() -> None:
    with world(FAST) as w:
        _, buffers = only(w.decode)
        for array in buffers.arrays:
            w.fabrics[1].deregister(array.ctypes.data)
        senders, receivers, _ = w.transfer()
        assert end(senders[0]) == end(receivers[0]) == ("PD4012", "decode")


@pytest.mark.code("PD4013")
def test_a_silent_fall_back_is_a_failure_unless_allowed() -> None:
    class Fallen(MemoryFabric):
        requested = "rdma"

        def observed_transport(self) -> Any:
            return "tcp"

    with world(replace(FAST, allow_fallback=False), fabric=Fallen) as w:
        senders, receivers, _ = w.transfer()
        assert end(senders[0])[0] == end(receivers[0])[0] == "PD4013"
    with world(FAST, fabric=Fallen) as w:
        _, receivers, _ = w.transfer()
        assert receivers[0].wait(10) == "confirmed"


class Wrong(MemoryFabric):
    """Reports success and loses the last block."""

    def begin(self, peer: MemoryFabric, blocks: Blocks) -> MemoryWriting:
        return super().begin(peer, Blocks(*(column[:-1] for column in blocks)))


@pytest.mark.code("PD4040")
@pytest.mark.parametrize("verify", ["sample", "full"])
def test_a_lost_block_is_noticed_by_the_receiver(verify: Any) -> None:
    with world(replace(FAST, verify=verify), fabric=Wrong) as w:
        senders, receivers, _ = w.transfer()
        assert end(senders[0])[0] == end(receivers[0])[0] == "PD4040"


@pytest.mark.code("PD4041")
def test_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it in quarantine: the request ends instead of waiting for ever."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: "staged")
    with World(manifest("prefill", 1), manifest("decode", 2), SHORT) as w:
        scratch = only(w.prefill)[0]._driver.scratch
        while scratch.take(object()) is not None:
            pass
        senders, receivers, _ = w.transfer()
        codes = {end(handle)[0] for handle in [*senders, *receivers]}
        assert codes <= {"PD4041", "PD4031"}


def test_late_repeated_and_misplaced_messages_change_nothing() -> None:
    """Every message, in an order that nobody sends, for rooms open, ended and unknown."""
    with world(FAST) as w:
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        _, receivers, wrong = w.transfer()
        assert receivers[0].wait(10) == "confirmed"
        (kept,) = decoder._driver._kept.values()
        to_prefill = kept.link
        (to_decode,) = prefill._driver._links.values()
        room = next(rooms)
        receiver = decoder.open(room, w.at, ids())
        while (request := decoder._driver.machine._rooms.get(room)) is None or not prefill._driver.machine.legs:
            receiver.wait(0.01)
        for number, attempt in ((room, "other"), (room, request.key[1]), (receivers[0].room, "x"), (12345, "y")):
            decoder._driver.loop.call(to_prefill.send, Confirm(number, attempt))
            if attempt != request.key[1]:
                decoder._driver.loop.call(to_prefill.send, Withdraw(number, attempt))
            decoder._driver.loop.call(to_prefill.send, Grant(number, attempt, 0, 1))
            for message in (Settled, Ready, Start):
                prefill._driver.loop.call(to_decode.send, message(number, attempt))
            prefill._driver.loop.call(to_decode.send, Landed(number, attempt, 3))
            if attempt != request.key[1]:
                prefill._driver.loop.call(to_decode.send, Done(number, attempt, b"late", {"kv": 1}))
                prefill._driver.loop.call(to_decode.send, Failed(number, attempt, "PD4033", "late", "decode"))
                decoder._driver.loop.call(to_prefill.send, Failed(number, attempt, "PD4033", "late", "decode"))
        data = {kind: np.array(v, dtype="<i8").tobytes() for kind, v in ids().items()}
        decoder._driver.loop.call(to_prefill.send, Ask(room, request.key[1], data, {}, "none"))
        sender = prefill.open(room)
        sender.send(ids(), b"right")
        assert receiver.wait(10) == sender.wait(10) == "confirmed"
        assert receiver.metadata == b"right"
        assert wrong() == []


def test_a_message_of_no_meaning_ends_its_connection_and_no_more() -> None:
    """It is no message of the protocol (PD4007); the next room goes over a new connection."""
    with world(FAST) as w:
        assert {handle.wait(10) for handles in w.transfer()[:2] for handle in handles} == {"confirmed"}
        decoder = only(w.decode)[0]
        (kept,) = decoder._driver._kept.values()
        channel = kept.link.channel
        decoder._driver.loop.call(kept.link.send, Grant(12345, "x", -5, 1))
        while not channel.over:
            time.sleep(0.01)
        assert {handle.wait(10) for handles in w.transfer()[:2] for handle in handles} == {"confirmed"}


def test_a_message_for_somebody_else_ends_the_link_and_nothing_more() -> None:
    with world(FAST) as w:
        _, receivers, _ = w.transfer()
        assert receivers[0].wait(10) == "confirmed"
        decoder = only(w.decode)[0]
        (kept,) = decoder._driver._kept.values()
        to_prefill = kept.link
        decoder._driver.loop.call(to_prefill.send, Lookup(1, 2))
        _, receivers, wrong = w.transfer()
        handle = receivers[0]
        if handle.wait(10) == "failed":  # it was asked for over the link that ended
            assert handle.failure.code == "PD4004"
        _, receivers, wrong = w.transfer()
        assert receivers[0].wait(10) == "confirmed"
        assert wrong() == []


def test_a_room_number_can_be_used_again() -> None:
    with world(FAST) as w:
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        for _ in range(3):
            receiver = decoder.open(7, w.at, ids())
            sender = prefill.open(7)
            sender.send(ids())
            assert receiver.wait(10) == sender.wait(10) == "confirmed"


def test_an_empty_list_moves_nothing_and_is_confirmed() -> None:
    with world(FAST) as w:
        some = {**ids(), "kv": [], "qsa_compressed": []}
        room = next(rooms)
        receiver = only(w.decode)[0].open(room, w.at, some)
        sender = only(w.prefill)[0].open(room)
        sender.send(some)
        assert receiver.wait(10) == sender.wait(10) == "confirmed"


def test_dp_groups_of_prefill() -> None:
    """Each room is served by the group that opened it, and the other group hears nothing of it."""
    with World(manifest("prefill", 1, dp=4), manifest("decode", 4), FAST) as w:
        for dp in (2, 0, 3, 1):
            senders, receivers, wrong = w.transfer(dp=dp, seed=dp)
            assert {handle.wait(10) for handle in receivers} == {"confirmed"}, receivers[0].failure
            assert len(senders) == 1
            assert wrong() == []


def test_nothing_is_left_behind() -> None:
    """Threads, descriptors, rooms: as many after as before."""

    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    with world() as w:
        assert w.transfer()[1][0].wait(10) == "confirmed"
    before = descriptors()
    for _ in range(3):
        with world() as w:
            assert w.transfer()[1][0].wait(10) == "confirmed"
            only(w.decode)[0].open(1, ("127.0.0.1", 9), ids()).abort("never mind")
            prefill, receiver = only(w.prefill)[0], only(w.decode)[0]
    assert threads_left() == []
    assert descriptors() <= before
    ours, theirs = prefill._driver, receiver._driver
    assert ours.machine.rooms == ours.machine.legs == ours.handles == ours._legs == ours._timers == {}
    assert theirs.machine.requests == theirs.handles == theirs._aims == theirs._kept == theirs._timers == {}


def test_a_room_that_decode_gave_up_can_be_asked_for_again() -> None:
    """What it gave up before prefill opened the room does not count against the next attempt."""
    with world(FAST) as w:
        prefill, decoder = only(w.prefill)[0], only(w.decode)[0]
        room = next(rooms)
        first = decoder.open(room, w.at, ids())
        while not prefill._driver.machine.legs:
            first.wait(0.01)
        first.abort("retry")
        assert first.wait_reusable(30)
        second = decoder.open(room, w.at, ids())
        while not prefill._driver.machine.legs:
            second.wait(0.01)
        sender = prefill.open(room)
        sender.send(ids())
        assert second.wait(10) == sender.wait(10) == "confirmed"


def test_items_are_not_reusable_while_a_chunk_is_put_into_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request aborted in the middle of a scatter: its pages would be written after they were given away."""
    entered, leave = threading.Event(), threading.Event()

    def slow(*args: Any) -> None:
        entered.set()
        leave.wait(10)

    monkeypatch.setattr(landing, "choose", lambda *args, **more: "staged")
    monkeypatch.setattr(NumpyCopier, "scatter", slow)
    with world(FAST) as w:
        senders, receivers, _ = w.transfer()
        assert entered.wait(30)
        receivers[0].abort("now")
        assert end(receivers[0])[0] == "PD4033"
        assert senders[0].wait_reusable(30)
        assert not receivers[0].wait_reusable(0.3)
        leave.set()
        assert receivers[0].wait_reusable(30)


@pytest.mark.code("PD4000")
def test_metadata_is_bounded() -> None:
    with world() as w, pytest.raises(TransferError, match="the limit is"):
        only(w.prefill)[0].open(1).send(ids(), bytes(METADATA_BYTES + 1))


def test_a_rank_that_was_not_asked_yet_hears_of_the_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode gives up when its ranks are known and none was asked: they do not wait for their deadline."""
    with World(manifest("prefill", 2), manifest("decode", 1), FAST) as w:
        decoder, room = only(w.decode)[0], next(rooms)
        monkeypatch.setattr(decoder._driver.machine, "_ask", lambda request, source: None)
        senders = [peer.open(room) for peer, _ in w.prefill.values()]
        receiver = decoder.open(room, w.at, ids())
        requests = decoder._driver.machine._rooms
        while room not in requests or not requests[room].sources:
            receiver.wait(0.01)
        receiver.abort("at once")
        assert {end(handle) for handle in [receiver, *senders]} == {("PD4033", "decode")}
