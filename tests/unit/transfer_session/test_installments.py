"""State that is sent as it is computed, and state of which decode holds the beginning."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plan import RankId
from pdctl_transfer.session import Rank
from pdctl_transfer.session.bytes.cost import WAYS
from pdctl_transfer.session.bytes.work import PairPlan
from pdctl_transfer.session.drive import landing, legwork
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.options import Way
from pdctl_transfer.session.wire.messages import More
from tests.unit.transfer_session.machines import OPTIONS, Model
from tests.unit.transfer_session.test_end_to_end import SIZES, possible
from tests.unit.transfer_session.world import FAST, Buffers, World, indices, manifest, rooms, spaced

PAGED = ("kv", "qsa_compressed")
Ids = Mapping[str, Sequence[int]]


def ids_of(ranks: Mapping[Rank, Any], pages: int, seed: int) -> dict[Rank, dict[str, list[int]]]:
    rng = np.random.default_rng(seed)
    return {rank: indices(rng, 64, pages) for rank in ranks}


def sent(handle: Any, ids: Ids, cuts: Sequence[int], first: int = 0) -> None:
    """Pages up to each cut, then the rest with the request's own state; what is left out is said with the first."""
    skipped = dict.fromkeys(PAGED, first) if first else {}
    for cut in cuts:
        handle.send({kind: ids[kind][first:cut] for kind in PAGED}, last=False, skipped=skipped)
        first = cut
    rest = {kind: list(some)[first:] if kind in PAGED else some for kind, some in ids.items()}
    handle.send(rest, b"meta", skipped=skipped)


@pytest.mark.parametrize("cuts", [(1,), (2, 2, 5), (0, 6)])
@pytest.mark.parametrize("way", [None, "direct", "packed", "staged"])
@pytest.mark.parametrize(("src", "dst"), SIZES)
def test_installments_arrive_whole(
    src: tuple[int, int], dst: tuple[int, int], way: Way | None, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever way they travel; empty ones, and ones of a single page, and small chunks, so that there are many."""
    if way is not None:
        monkeypatch.setattr(landing, "choose", lambda load, *rest, **more: possible(way, load))
    options = replace(FAST, chunk_bytes=4096, staging_bytes=16384, verify="full")
    with World(manifest("prefill", *src), manifest("decode", *dst), options, memory=spaced(gap=8)) as world:
        room, here, there = next(rooms), ids_of(world.prefill, 6, 1), ids_of(world.decode, 6, 2)
        handles = []
        for number, (rank, (peer, buffers)) in enumerate(world.prefill.items()):
            buffers.fill(room, here[rank])
            handles.append(handle := peer.open(room))
            if number == 0:  # before decode has asked; the others' after
                sent(handle, here[rank], cuts)
        receivers = [peer.open(room, world.at, there[rank]) for rank, (peer, _) in world.decode.items()]
        for handle, rank in list(zip(handles, here, strict=True))[1:]:
            sent(handle, here[rank], cuts)
        assert [h.wait(10) for h in receivers] == ["confirmed"] * len(receivers), [h.failure for h in receivers]
        assert [h.wait(10) for h in handles] == ["confirmed"] * len(handles), [h.failure for h in handles]
        assert [wrong for rank, (_, b) in world.decode.items() for wrong in b.wrong(room, there[rank])] == []
        assert all(b.gaps_untouched() and b.untouched(there[rank]) for rank, (_, b) in world.decode.items())
        assert {h.metadata for h in receivers} == {b"meta"}


@pytest.mark.parametrize("left_out", [0, 2, 3])
@pytest.mark.parametrize("cuts", [(), (4,)])
@pytest.mark.parametrize(("src", "dst"), [(1, 1), (1, 2), (2, 1)])
def test_what_decode_holds_is_not_moved(src: int, dst: int, cuts: tuple[int, ...], left_out: int) -> None:
    """Its engine is told, and may leave it out itself, all or part of it."""
    holds = 3
    with World(manifest("prefill", src), manifest("decode", dst), replace(FAST, verify="full")) as world:
        room, here, there = next(rooms), ids_of(world.prefill, 6, 1), ids_of(world.decode, 6, 2)
        handles = [peer.open(room) for peer, _ in world.prefill.values()]
        skip = dict.fromkeys(PAGED, holds)
        tails = {rank: {k: v[holds:] if k in PAGED else v for k, v in ids.items()} for rank, ids in there.items()}
        receivers = [peer.open(room, world.at, tails[rank], skip=skip) for rank, (peer, _) in world.decode.items()]
        for handle, (rank, (_, buffers)) in zip(handles, world.prefill.items(), strict=True):
            buffers.fill(room, here[rank])
            while handle.state == "bootstrapping":
                handle.wait(0.01)
            assert handle.skip == skip
            sent(handle, here[rank], cuts, left_out)
        assert {h.wait(10) for h in [*receivers, *handles]} == {"confirmed"}, [h.failure for h in receivers]
        for rank, (_, buffers) in world.decode.items():
            assert buffers.untouched(tails[rank])
            assert wrong_tail(buffers, room, there[rank], holds) == []


def wrong_tail(buffers: Buffers, room: int, ids: Ids, holds: int) -> list[str]:
    """Entries of which the items after the first `holds` pages are not what the room holds."""
    bad = []
    for (kind, e), array in zip(buffers.entries(), buffers.arrays, strict=True):
        first = holds if kind in PAGED else 0
        wanted = buffers.slice_of(room, kind, e, len(ids[kind]))
        if not np.array_equal(array[list(ids[kind])[first:]], wanted[first:]):
            bad.append(f"{kind} {e.layer} {e.tensor}")
    return bad


@pytest.mark.code("PD4020")
@pytest.mark.parametrize(
    ("sends", "skipped", "said"),
    [
        (({"kv": 4}, {"kv": 4, "qsa_compressed": 6}), 0, "kv: 8 ids on prefill, 6 on decode"),
        (({"kv": 4}, {"kv": 1, "qsa_compressed": 6}), 0, "kv: 5 ids on prefill, 6 on decode"),
        (({"kv": 7, "qsa_compressed": 6},), 0, "kv: 7 ids on prefill, 6 on decode"),
        (({"kv": 5, "qsa_compressed": 5},), 1, "kv: prefill left out the first 1 items, decode holds 0"),
    ],
)
def test_installments_that_do_not_add_up(sends: tuple[dict[str, int], ...], skipped: int, said: str) -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        room, (peer, _), (decoder, _) = next(rooms), *world.prefill.values(), *world.decode.values()
        receiver, sender = decoder.open(room, world.at, indices(np.random.default_rng(0), 64, 6)), peer.open(room)
        for number, counts in enumerate(sends):
            last = number == len(sends) - 1
            ids = {kind: list(range(count)) for kind, count in counts.items()}
            own = {"mamba": [0], "qsa_pending": [0]} if last else {}
            sender.send({**ids, **own}, last=last, skipped=dict.fromkeys(ids, skipped))
        assert (receiver.wait(10), sender.wait(10)) == ("failed", "failed")
        assert (receiver.failure.code, sender.failure.code) == ("PD4020", "PD4020")
        assert said in sender.failure.cause


def test_what_decode_is_told_must_be_part_of_what_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kinds, more than there is, backwards, or a last one that leaves something out."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: "staged")
    rank = RankId(0, 0)
    part = PairPlan(manifest("prefill", 1), manifest("decode", 1)).part(rank, rank)
    whole = dict.fromkeys(part.kinds, 4)

    def told(*stops: dict[str, int], last: bool) -> list[int | None]:
        aim = landing.Aim({kind: np.arange(4) for kind in part.kinds})
        aim.ask(rank, part, "memory", 4096, frozenset(WAYS))
        ends = [last and n == len(stops) - 1 for n in range(len(stops))]
        return [
            aim.extend(rank, More(1, "a", n, one, end)) for n, (one, end) in enumerate(zip(stops, ends, strict=True))
        ]

    parts, (at_once,) = told({**whole, "kv": 3}, whole, last=True), told(whole, last=True)
    assert None not in parts
    assert at_once is not None
    assert at_once > 0
    assert told({}, last=False) == told({**whole, "kv": 5}, last=False) == told({**whole, "kv": 3}, last=True) == [None]
    assert told({**whole, "kv": 3}, {**whole, "kv": 2}, last=False)[1] is None


@pytest.mark.code("PD4000")
def test_metadata_goes_with_the_last() -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        (peer, _), *_ = world.prefill.values()
        with pytest.raises(TransferError, match="last installment"):
            peer.open(next(rooms)).send({}, b"meta", last=False)


def test_time_begins_anew_with_each_installment() -> None:
    """Longer than `transfer_s` between two of them, and shorter than `waiting_s` and it."""
    model = begun(parts=3)
    for _ in range(2):
        for seconds in (100, 100, 100):
            model.pass_time(seconds)
        assert {handle.code for rank in model.ranks.values() for handle in rank.handles.values()} == {""}
        send_all(model)
        move(model)
    model.calm()
    assert {handle.code for rank in model.ranks.values() for handle in rank.handles.values()} == {"confirmed"}


@pytest.mark.code("PD4030")
def test_an_engine_that_sends_no_more_is_named() -> None:
    model = begun(parts=2)
    model.pass_time(OPTIONS.waiting_s + OPTIONS.transfer_s + OPTIONS.linger_s / 2)  # decode waits a little longer
    for _ in range(5):
        model.talk_well()
    ends = [handle.ends for rank in model.ranks.values() for handle in rank.handles.values()]
    assert {end[0].code for end in ends if end[0] is not None} == {"PD4030"}
    assert any("nothing more" in str(end[0]) for end in ends)


def begun(parts: int) -> Model:
    """A room whose first installment is written, staged."""
    model = Model()
    model.open(Cut(False, False, 2, True), (*model.side("prefill"), *model.side("decode")), 1, parts=parts)
    move(model)
    assert all(leg.started for rank in model.side("prefill") for leg in rank.machine.legs.values())
    return model


def move(model: Model) -> None:
    """All that can happen while the engines send nothing."""
    while any([model.link_well(), model.work_well(), model.talk_well()]):
        pass


def send_all(model: Model) -> None:
    for rank in model.side("prefill"):
        for serial in model.unsent(rank):
            model.send_next(rank, serial)


@pytest.mark.code("PD4042")
@pytest.mark.parametrize(("where", "side"), [(landing.Aim, "decode"), (legwork.LegWork, "prefill")])
def test_a_defect_on_the_loop_fails_the_request_at_once(where: Any, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is left to a timer: what the machine asks of bytes is answered, whatever happens there."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(landing, "choose", lambda *args, **more: "staged")
    with World(manifest("prefill", 1), manifest("decode", 1), replace(FAST, transfer_s=60, waiting_s=60)) as world:
        room, (peer, _), (decoder, _) = next(rooms), *world.prefill.values(), *world.decode.values()
        ids = indices(np.random.default_rng(0), 64, 6)
        receiver, sender = decoder.open(room, world.at, ids), peer.open(room)
        monkeypatch.setattr(where, "extend" if side == "decode" else "cut", broken)
        sender.send({kind: ids[kind] for kind in PAGED}, last=False)
        assert {handle.wait(20) for handle in (receiver, sender)} == {"failed"}
        assert (receiver.failure.code, receiver.failure.side) == ("PD4042", side)
        assert (sender.failure.code, sender.failure.side) == ("PD4042", side)
        monkeypatch.undo()
        senders, receivers, wrong = world.transfer()
        assert {handle.wait(20) for handle in [*senders, *receivers]} == {"confirmed"}
        assert wrong() == []
