"""Lists of ids that are empty or differ: paired where it is known how, else refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.layout.manifest import Component, Engine, Manifest
from pdctl_transfer.session import Rank
from pdctl_transfer.session.checks import default_check
from pdctl_transfer.session.drive import landing
from pdctl_transfer.session.identity import identity
from pdctl_transfer.session.options import Way
from tests.unit.transfer_session.world import FAST, Buffers, World, entry, manifest, rooms

WINDOW, STATE = 7, 4
SMALL = replace(FAST, chunk_bytes=2048, staging_bytes=16384, transfer_s=20, waiting_s=20, silent_s=10)


def model(role: str, tp: int, engine: str = "sglang", extra: str = "c128_state") -> Manifest:
    """A window of pages in each layer, and state that may be none."""
    plain = manifest(role, tp)
    (stage,) = plain.stages
    kv = next(component for component in stage.components if component.kind == "kv")
    window = Component("swa", "page", tuple(entry(layer, "k", ((2, 1),), 16, 8, tp) for layer in range(WINDOW)))
    rows = [entry(layer, "state", ((1, 1),), 1, 24, tp, sharding="replicated") for layer in range(STATE)]
    state = Component(extra, "other", tuple(rows))
    made = replace(stage, components=(kv, window, state))
    return replace(plain, engine=Engine(engine, "0.5.23"), stages=(made,))


def move(
    kv: tuple[int, int], swa: tuple[int, int], *, engine: str = "sglang", tp: int = 1, state: tuple[int, int] = (0, 0)
) -> tuple[set[str], str, list[str]]:
    """States of both handles, the failure's cause, and what is wrong of decode's last pages; (prefill, decode) each."""
    with World(model("prefill", 2, engine), model("decode", tp, engine), SMALL) as world:
        room = next(rooms)
        here = {"kv": list(range(kv[0])), "swa": list(range(20, 20 + swa[0])), "c128_state": list(range(state[0]))}
        there = {"kv": list(range(30, 30 + kv[1])), "swa": list(range(swa[1]))[::-1]}
        there["c128_state"] = list(range(5, 5 + state[1]))
        senders: list[Any] = []
        for peer, buffers in world.prefill.values():
            buffers.fill(room, here)
            senders.append(peer.open(room))
            senders[-1].send(here, b"meta")
        receivers = [peer.open(room, world.at, there) for peer, _ in world.decode.values()]
        states = {handle.wait(30) for handle in [*senders, *receivers]}
        causes = [f"{handle.failure.code} {handle.failure.cause}" for handle in senders if handle.failure]
        bad = [w for _, buffers in world.decode.values() for w in wrong(buffers, room, here, there)]
        untouched = all(buffers.untouched(there) for _, buffers in world.decode.values())
        return states, "".join(causes[:1]), bad if untouched else [*bad, "others' pages"]


def wrong(buffers: Buffers, room: int, here: dict[str, list[int]], there: dict[str, Sequence[int]]) -> list[str]:
    """Entries where decode's items are not the last ones of prefill's."""
    bad = []
    for (kind, e), array in zip(buffers.entries(), buffers.arrays, strict=True):
        count = len(here[kind])
        wanted = buffers.slice_of(room, kind, e, count)[count - len(there[kind]) :]
        if not (array[list(there[kind])] == wanted).all():
            bad.append(f"{kind} {e.layer}")
    return bad


@pytest.mark.parametrize("way", ["direct", "staged"])
@pytest.mark.parametrize("swa", [(3, 3), (4, 3), (9, 3), (3, 0)])
def test_a_window_that_is_longer_on_prefill_is_paired_from_the_end(
    swa: tuple[int, int], way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if the surplus is cut at the end, as SGLang does: every page would land one place off."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    assert move((5, 5), swa) == ({"confirmed"}, "", [])


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_so_it_is_at_any_tp(tp: int) -> None:
    assert move((5, 5), (6, 4), tp=tp) == ({"confirmed"}, "", [])


@pytest.mark.code("PD4020")
@pytest.mark.parametrize(
    ("kv", "swa", "said"),
    [
        ((5, 5), (3, 4), "swa: 3 ids on prefill, 4 on decode"),
        ((6, 5), (4, 3), "kv: 6 ids on prefill, 5 on decode"),
        ((6, 5), (3, 3), "kv: 6 ids on prefill, 5 on decode"),
        ((4, 5), (3, 3), "kv: 4 ids on prefill, 5 on decode"),
    ],
)
def test_what_is_not_known_to_end_together_is_refused(kv: tuple[int, int], swa: tuple[int, int], said: str) -> None:
    states, cause, bad = move(kv, swa)
    assert states == {"failed"}
    assert cause.startswith("PD4020")
    assert said in cause
    assert "others' pages" not in bad


@pytest.mark.code("PD4020")
def test_a_window_of_another_engine_is_refused() -> None:
    """Its pages need not be of the size of kv's: as many of those prove nothing."""
    states, cause, _ = move((5, 5), (4, 3), engine="reference")
    assert states == {"failed"}
    assert "swa: 4 ids on prefill, 3 on decode" in cause


@pytest.mark.code("PD4020")
@pytest.mark.parametrize(("state", "ends"), [((0, 0), "confirmed"), ((2, 2), "confirmed"), ((0, 1), "failed")])
def test_state_that_may_be_none_is_none_on_both_sides(state: tuple[int, int], ends: str) -> None:
    states, cause, _ = move((2, 2), (1, 1), state=state)
    assert states == {ends}
    assert cause.startswith("" if ends == "confirmed" else "PD4020")


@pytest.mark.code("PD4036")
def test_a_layout_whose_lists_are_no_ids_is_refused_before_anything_is_opened() -> None:
    """Segments of a row, read as ids, are other requests' rows."""
    for role in ("prefill", "decode"):
        made = model(role, 1, extra="dsa_tail")
        regions = Buffers(made, Rank(0, 0), 8).regions()
        with pytest.raises(TransferError, match="dsa_tail") as caught:
            identity(made, Rank(0, 0), regions, MemoryFabric(), FAST, default_check)
        assert caught.value.code == "PD4036"
