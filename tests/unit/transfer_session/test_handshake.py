"""Nothing moves between sides that do not fit, and both fail with the code that says why."""

import socket
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules import Finding
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank, Region
from pdctl_transfer.session.bytes.work import pair_plan
from pdctl_transfer.session.drive import link
from pdctl_transfer.session.identity import Check
from tests.unit.transfer_session.world import FAST, Buffers, World, manifest

SHORT = replace(FAST, bootstrap_s=3.0, waiting_s=3.0, transfer_s=3.0, handshake_s=3.0)


def fails_on_both(prefill: Manifest, decode: Manifest) -> set[str]:
    """Codes with which one room ends on both sides; no byte may have moved."""
    with World(prefill, decode, SHORT) as world:
        senders, receivers, _ = world.transfer()
        ends = [handle.wait(10) for handle in [*senders, *receivers]]
        assert set(ends) == {"failed"}
        assert all((array == 0xEE).all() for _, buffers in world.decode.values() for array in buffers.arrays)
        assert all(handle.reusable for handle in [*senders, *receivers])
        return {handle.failure.code for handle in [*senders, *receivers]}


@pytest.mark.code("PD1001")
def test_page_sizes() -> None:
    assert fails_on_both(manifest("prefill", 1), manifest("decode", 1, page_size=32)) == {"PD1001"}


@pytest.mark.code("PD1013")
def test_models() -> None:
    assert fails_on_both(manifest("prefill", 1), manifest("decode", 1, model="sha256:1")) == {"PD1013"}


@pytest.mark.code("PD1038")
def test_equal_bytes_of_other_numbers() -> None:
    """One geometry under another rotary base: every length fits, and the tokens would be wrong. A side of before
    this field says nothing, and is let through."""
    prefill, decode = manifest("prefill", 1), manifest("decode", 1)
    ours, theirs = (
        replace(side, model=replace(side.model, values_digest=f"sha256:{digest}"))
        for side, digest in ((prefill, "7"), (decode, "8"))
    )
    assert fails_on_both(ours, theirs) == {"PD1038"}
    with World(ours, decode, SHORT) as world:
        senders, receivers, _ = world.transfer()
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"confirmed"}


def test_the_hook_decides() -> None:
    """A check given to one side alone refuses for both."""
    with World(manifest("prefill", 1), manifest("decode", 1), SHORT) as world:
        for peer, _ in world.prefill.values():
            peer._driver.me = replace(peer._driver.me, check=lambda prefill, decode: [Finding("PD1016", "pair")])
        senders, receivers, _ = world.transfer()
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"failed"}
        assert {handle.failure.code for handle in [*senders, *receivers]} == {"PD1016"}


@pytest.mark.code("PD4009")
def test_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """A side whose planner computes something else is noticed by the digest."""
    calls: list[int] = []

    def other(check: Check, prefill: bytes, decode: bytes) -> Any:
        plan = pair_plan.__wrapped__(prefill, decode)
        calls.append(1)
        plan.digest = f"sha256:{len(calls)}"
        return None, plan

    monkeypatch.setattr(link, "judged", other)
    assert fails_on_both(manifest("prefill", 1), manifest("decode", 1)) == {"PD4009"}


@pytest.mark.code("PD4025")
def test_fabrics() -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), SHORT) as world:
        world.fabrics[0].kind = "other"
        senders, receivers, _ = world.transfer()
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"failed"}
        assert {handle.failure.code for handle in [*senders, *receivers]} == {"PD4025"}


@pytest.mark.code("PD4022")
def test_a_region_that_does_not_fit_its_layout_is_refused_before_anything_starts() -> None:
    made = manifest("prefill", 1)
    buffers = Buffers(made, Rank(0, 0), 4)
    regions = buffers.regions()
    base, length = regions[0].base, regions[0].item_len
    overlapping = Region(base, 4, length, stride=length - 1)
    for wrong in ([*regions[:-1]], [Region(base, 4, length - 1), *regions[1:]], [overlapping, *regions[1:]]):
        with pytest.raises(TransferError) as caught:
            PrefillPeer(made, Rank(0, 0), wrong, MemoryFabric(), registry=("127.0.0.1", 1))
        assert caught.value.code == "PD4022"
    with pytest.raises(TransferError) as caught:
        DecodePeer(manifest("decode", 2), Rank(0, 2), regions, MemoryFabric())
    assert caught.value.code == "PD4022"


@pytest.mark.code("PD4008")
def test_secrets() -> None:
    """Who does not know the secret is told so on its side, and costs the other nothing."""
    with ExitStack() as stack:
        world = stack.enter_context(World(manifest("prefill", 1), manifest("decode", 1), replace(SHORT, secret=b"a")))
        buffers = Buffers(manifest("decode", 1), Rank(0, 0), 8)
        stranger = DecodePeer(buffers.manifest, Rank(0, 0), buffers.regions(), MemoryFabric(), SHORT)
        stack.callback(stranger.close)
        handle = stranger.open(1, world.at, {"kv": [1], "qsa_compressed": [1], "mamba": [0], "qsa_pending": [0]})
        assert handle.wait(10) == "failed"
        assert handle.failure is not None
        assert handle.failure.code == "PD4008"
        _, receivers, wrong = world.transfer()
        assert [h.wait(10) for h in receivers] == ["confirmed"]
        assert wrong() == []


@pytest.mark.code("PD4007")
def test_protocols() -> None:
    """A registry of another version is named, not misread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        buffers = Buffers(manifest("decode", 1), Rank(0, 0), 8)
        peer = DecodePeer(buffers.manifest, Rank(0, 0), buffers.regions(), MemoryFabric(), SHORT)
        try:
            ids = {"kv": [1], "qsa_compressed": [1], "mamba": [0], "qsa_pending": [0]}
            handle = peer.open(1, server.getsockname(), ids)
            server.settimeout(5)
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"PDCT" + bytes([9]) + bytes(16))
                assert handle.wait(10) == "failed"
            assert handle.failure is not None
            assert handle.failure.code == "PD4007"
        finally:
            peer.close()


@pytest.mark.code("PD4024")
def test_roles() -> None:
    """A decode rank that registers as prefill would be asked for state that it does not have."""
    with World(manifest("prefill", 1), manifest("decode", 1), SHORT) as world:
        ((peer, _),) = world.prefill.values()
        peer._driver.me = replace(peer._driver.me, manifest=manifest("decode", 1))
        _, receivers, _ = world.transfer()
        assert receivers[0].wait(10) == "failed"
        assert receivers[0].failure.code == "PD4024"
