"""Ids are judged before a byte moves: every kind, inside of the memory, and each once where it is written."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.layout.manifest import Manifest, Parallel
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank
from pdctl_transfer.session.bytes.work import PairPlan
from pdctl_transfer.session.checks import Held, length_fault
from tests.unit.transfer_session.test_requests import end
from tests.unit.transfer_session.world import FAST, Buffers, World, manifest, rooms

GOOD = {"kv": [3, 1, 2], "qsa_compressed": [3, 1, 2], "mamba": [4], "qsa_pending": [0]}
SHORT = replace(FAST, bootstrap_s=3.0, waiting_s=3.0, transfer_s=3.0, handshake_s=3.0)

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mamba": None}, "mamba: no ids were given"),
    ({"kv": None, "mamba": None}, "kv: no ids were given"),
    ({"KV": [1]}, "KV: not a kind of its state, which has kv, mamba, qsa_compressed, qsa_pending"),
    ({"kv": [3, 16]}, "kv: id 16, there are 16 items"),
    ({"kv": [-1]}, "kv: id -1, there are 16 items"),
    ({"mamba": [1, 2]}, "mamba: 2 ids, exactly one slot"),
    ({"qsa_pending": []}, "qsa_pending: 0 ids, exactly one row"),
]
TWICE = ({"kv": [3, 9, 9, 4], "qsa_compressed": [3, 9, 8, 4]}, "kv: id 9 is there more than once")


def ids(**changed: Any) -> dict[str, Any]:
    """The good ones but for these; None: none at all."""
    return {kind: np.array(v, dtype=np.int64) for kind, v in ({**GOOD, **changed}).items() if v is not None}


def fault(made: Manifest, given: dict[str, Any], pp: int = 0, unique: bool = True) -> str:
    return Held(made, pp, Buffers(made, Rank(pp, 0), 16).regions()).fault(given, unique=unique)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("changed", "says"), WRONG)
def test_ids_that_do_not_fit(role: str, changed: dict[str, Any], says: str) -> None:
    for unique in (False, True):
        assert fault(manifest(role, 1), ids(**changed), unique=unique).startswith(says)


def test_ids_that_fit() -> None:
    """An empty list says that there are none; only what is written must be there once."""
    made = manifest("decode", 1)
    assert fault(made, ids()) == ""
    assert fault(made, ids(kv=[], qsa_compressed=[])) == ""
    assert fault(made, ids(kv=[2, 2]), unique=False) == ""
    assert fault(made, ids(**TWICE[0])) == TWICE[1]
    many = np.arange(16)[::-1]
    assert fault(made, ids(kv=many)) == ""


def test_only_the_kinds_of_the_own_stage_are_needed() -> None:
    """An engine gives all ranks the same lists; what another stage holds is nothing to this one."""
    made = manifest("prefill", 1, 2)
    first = {component.kind for component in made.stages[0].components if component.entries}
    assert first == {"kv", "mamba"}
    assert fault(made, ids()) == ""
    assert fault(made, ids(qsa_pending=None, qsa_compressed=None)) == ""
    assert fault(made, ids(qsa_pending=None), pp=1).startswith("qsa_pending: no ids")
    assert fault(made, ids(qsa_pending=[99]), pp=0) == ""


def test_lists_that_do_not_belong_together() -> None:
    pair = PairPlan(manifest("prefill", 1), manifest("decode", 1))
    part = pair.part(RankId(0, 0), RankId(0, 0))
    assert length_fault(part, ids(), ids()) == ""
    assert length_fault(part, ids(kv=[1]), ids()) == "kv: 1 ids on prefill, 3 on decode"


@pytest.mark.code("PD4021")
@pytest.mark.parametrize(("changed", "says"), [*WRONG, (dict.fromkeys(GOOD), "kv: no ids"), TWICE])
def test_decode_hears_at_once(changed: dict[str, Any], says: str) -> None:
    """Also what prefill forgot as well: both plugins come from one code base, so an omission is symmetrical."""
    with World(manifest("prefill", 1), manifest("decode", 1), FAST, items=16) as w:
        receiver = w.decode[Rank(0, 0)][0].open(next(rooms), w.at, ids(**changed))
        assert end(receiver) == ("PD4021", "decode")
        assert says in receiver.failure.cause
        assert receiver.wait_reusable(5)


@pytest.mark.code("PD4021")
@pytest.mark.parametrize(("changed", "says"), [*WRONG, (dict.fromkeys(GOOD), "kv: no ids")])
def test_both_hear_of_what_prefill_sends(changed: dict[str, Any], says: str) -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), FAST, items=16) as w:
        (decode, _), (prefill, _) = w.decode[Rank(0, 0)], w.prefill[Rank(0, 0)]
        room = next(rooms)
        receiver = decode.open(room, w.at, ids())
        sender = prefill.open(room)
        sender.send(ids(**changed))
        assert end(sender) == end(receiver) == ("PD4021", "prefill")
        assert says in sender.failure.cause


def with_context(role: str) -> Manifest:
    return replace(manifest(role, 1), parallel=Parallel(1, attn_cp=2))


@pytest.mark.code("PD1006")
def test_context_parallel_state_is_refused_before_anything_starts() -> None:
    """Each rank holds other tokens: half of the state would never be asked for."""
    for role in ("prefill", "decode"):
        made = with_context(role)
        regions = Buffers(made, Rank(0, 0), 4).regions()
        peer: Any = partial(PrefillPeer, registry=("127.0.0.1", 9)) if role == "prefill" else DecodePeer
        with pytest.raises(TransferError, match=f"context parallelism of 2 on {role}") as caught:
            peer(made, Rank(0, 0), regions, MemoryFabric())
        assert caught.value.code == "PD1006"


@pytest.mark.code("PD1006")
def test_context_parallel_state_of_an_older_peer_is_refused_by_the_handshake() -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), SHORT) as w:
        for peer, _ in w.prefill.values():
            made = with_context("prefill")
            peer._driver.me = replace(peer._driver.me, encoded=encode_manifest(made), check=lambda prefill, decode: [])
        for peer, _ in w.decode.values():
            peer._driver.me = replace(peer._driver.me, check=lambda prefill, decode: [])
        senders, receivers, _ = w.transfer()
        assert {end(handle)[0] for handle in [*senders, *receivers]} == {"PD1006"}
