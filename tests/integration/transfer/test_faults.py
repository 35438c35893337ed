"""Faults between real processes: every request ends on both sides, with a code that names the first cause."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from pdctl_transfer.session import Options
from tests.integration.transfer.ranks import OPTIONS, Process, Spec, indices, pair, rooms
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration

PAINT = 0x5A
ITEMS = 64
FABRICS = ["mooncake", pytest.param("nixl", marks=pytest.mark.matrix)]
DEADLINE = OPTIONS.silent_s + OPTIONS.transfer_s + 5


def spec(role: str, fabric: str = "mooncake", **more: object) -> Spec:
    made = manifest(role, 1, scale=64)
    return Spec(made, tuple(ranks(made)), fabric, items=ITEMS, **more)  # type: ignore[arg-type]


@contextmanager
def moving(
    fabric: str, options: Options = OPTIONS, slow_s: float = 0.1
) -> Iterator[tuple[Process, Process, int, dict[str, list[int]], dict[str, list[int]]]]:
    """A pair of processes in the middle of a transfer that takes some seconds."""
    with pair(spec("prefill", fabric, options=options, slow_s=slow_s), spec("decode", fabric, options=options)) as both:
        prefill, decode = both
        room = next(rooms)
        ours, theirs = indices(room, ITEMS, 40), indices(room + 1, ITEMS, 40)
        decode.call("open", room, prefill.call("address"), theirs)
        prefill.call("send", room, ours)
        assert prefill.call("wait_state", room, "transferring")
        assert decode.call("wait_state", room, "transferring")
        yield prefill, decode, room, ours, theirs


def ends(process: Process, room: int) -> tuple[str, str]:
    """Code and side of the failure; it must have failed."""
    ((state, code, side, cause),) = process.call("wait", room, DEADLINE, timeout=DEADLINE + 5)
    assert state == "failed", state
    assert cause
    return code, side


@pytest.mark.parametrize("fabric", ["mooncake", "nixl"])
@pytest.mark.code("PD4004")
def test_prefill_killed_in_mid_transfer(fabric: str) -> None:
    """Decode hears of it at once, and gets its pages back once the process is seen to be gone; then nothing lands."""
    with moving(fabric) as (prefill, decode, room, _, theirs):
        prefill.kill()
        assert ends(decode, room) == ("PD4004", "prefill")
        assert decode.call("wait_reusable", room, 10.0)
        decode.call("paint", theirs, PAINT)
        time.sleep(0.5)
        assert decode.call("painted", theirs, PAINT)
        assert decode.call("usage")["kept"] == 0


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.code("PD4004")
def test_decode_killed_in_mid_transfer(fabric: str) -> None:
    """Prefill hears of it at once, and its pages come back when nothing reads them."""
    with moving(fabric) as (prefill, decode, room, _, _):
        decode.kill()
        code, side = ends(prefill, room)
        assert side == "decode"
        assert code in {"PD4004", "PD4011", "PD4012"}  # the connection or the write, whichever ended first
        assert prefill.call("wait_reusable", room, 30.0)


@pytest.mark.parametrize("fabric", ["mooncake", "nixl"])
@pytest.mark.code("PD4005")
def test_decode_frozen_in_mid_transfer(fabric: str) -> None:
    """Prefill gives up by its own deadline and keeps the pages; both settle soon after decode goes on."""
    with moving(fabric) as (prefill, decode, room, ours, theirs):
        decode.freeze()
        code, side = ends(prefill, room)
        assert (code, side) == ("PD4005", "decode")
        decode.thaw()
        thawed = time.monotonic()
        assert ends(decode, room)[0] == "PD4005"
        assert time.monotonic() - thawed < 5
        assert decode.call("wait_reusable", room, 15.0)
        decode.call("paint", theirs, PAINT)
        assert prefill.call("wait_reusable", room, 15.0)
        prefill.call("paint", ours, 0)
        time.sleep(0.5)
        assert decode.call("painted", theirs, PAINT), "a page was written after it was reusable"
        again(prefill, decode)


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.code("PD4005")
def test_prefill_frozen_in_mid_transfer(fabric: str) -> None:
    """Decode gives up by its own deadline, and its pages stay in quarantine until prefill goes on and says so."""
    with moving(fabric) as (prefill, decode, room, _, theirs):
        prefill.freeze()
        assert ends(decode, room) == ("PD4005", "prefill")
        assert not decode.call("reusable", room)
        prefill.thaw()
        thawed = time.monotonic()
        ends(prefill, room)
        assert time.monotonic() - thawed < 5
        assert decode.call("wait_reusable", room, 15.0)
        decode.call("paint", theirs, PAINT)
        time.sleep(0.5)
        assert decode.call("painted", theirs, PAINT), "a page was written after it was reusable"
        again(prefill, decode)


@pytest.mark.code("PD4033")
@pytest.mark.parametrize(("side", "staging"), [("prefill", 0), ("decode", 0), ("decode", OPTIONS.staging_bytes)])
def test_abort_in_mid_transfer(side: str, staging: int) -> None:
    """Either side may, of direct and staged writes; both end with it, and reused pages are not written late."""
    with moving("mooncake", replace(OPTIONS, staging_bytes=staging)) as (prefill, decode, room, _, theirs):
        {"prefill": prefill, "decode": decode}[side].call("abort", room)
        assert ends(prefill, room) == ends(decode, room) == ("PD4033", side)
        assert decode.call("wait_reusable", room, 10.0)
        decode.call("paint", theirs, PAINT)
        time.sleep(0.5)
        assert decode.call("painted", theirs, PAINT)
        again(prefill, decode)


@pytest.mark.code("PD4031")
def test_transfer_that_takes_too_long() -> None:
    """The deadline ends it on both sides; the rest is not written."""
    with moving("mooncake", replace(OPTIONS, transfer_s=1.0)) as (prefill, decode, room, _, theirs):
        assert {ends(prefill, room)[0], ends(decode, room)[0]} == {"PD4031"}
        assert decode.call("wait_reusable", room, 10.0)
        decode.call("paint", theirs, PAINT)
        time.sleep(0.5)
        assert decode.call("painted", theirs, PAINT)


@pytest.mark.code("PD4034")
def test_prefill_closed_in_mid_transfer() -> None:
    """An orderly end fails what is open and leaves nothing under way."""
    with moving("mooncake") as (prefill, decode, room, _, _):
        prefill.close()
        assert ends(decode, room) == ("PD4034", "prefill")
        assert decode.call("wait_reusable", room, 10.0)


@pytest.mark.parametrize("fabric", ["mooncake", "nixl"])
@pytest.mark.code("PD4011")
def test_destination_deregistered(fabric: str) -> None:
    """Mooncake says so. NIXL reports success; over TCP the bytes even land, and only then the receiver confirms."""
    with pair(spec("prefill", fabric), spec("decode", fabric)) as (prefill, decode):
        again(prefill, decode)
        decode.call("deregister")
        room = next(rooms)
        theirs = indices(room, ITEMS, 8)
        decode.call("open", room, prefill.call("address"), theirs)
        prefill.call("send", room, indices(room, ITEMS, 8))
        ((state, code, _, _),) = decode.call("wait", room)
        if state == "confirmed":
            assert fabric == "nixl"
            assert decode.call("wrong", room, theirs) == []
        else:
            assert code in {"PD4011", "PD4012", "PD4040"}
            assert ends(prefill, room)[0] == code


@pytest.mark.code("PD4001")
def test_registry_is_gone() -> None:
    """What knows its peers goes on; what must look them up fails at its deadline, and says why."""
    with pair(spec("prefill"), spec("decode")) as (prefill, decode):
        again(prefill, decode)
        prefill.call("close_registry")
        again(prefill, decode)
        stranger = Process(spec("decode", options=replace(OPTIONS, bootstrap_s=1.0))).ready()
        try:
            room = next(rooms)
            stranger.call("open", room, prefill.call("address"), indices(room, ITEMS, 4))
            assert ends(stranger, room) == ("PD4001", "prefill")
        finally:
            stranger.kill()


def test_prefill_restarted_under_the_same_address() -> None:
    """Decode recognises the new one, fails what it asked of the old one, and serves new requests."""
    with moving("mooncake") as (prefill, decode, room, _, _):
        port = prefill.call("address")[1]
        prefill.kill()
        successor = Process(spec("prefill", registry_port=port)).ready()
        try:
            assert ends(decode, room) == ("PD4004", "prefill")
            assert decode.call("wait_reusable", room, 10.0)
            again(successor, decode)
        finally:
            successor.kill()


def test_decode_restarted() -> None:
    """Prefill serves the new one beside what the old one left."""
    with moving("mooncake") as (prefill, decode, room, _, _):
        decode.kill()
        successor = Process(spec("decode")).ready()
        try:
            again(prefill, successor)
            ends(prefill, room)
            assert prefill.call("wait_reusable", room, 30.0)
        finally:
            successor.kill()


def test_more_blocks_than_the_fabric_takes() -> None:
    """Thousands of blocks go in batches; Mooncake by itself refuses more than 2048."""
    tp1, tp4 = manifest("prefill", 1), manifest("decode", 2)
    items = 600
    with pair(Spec(tp1, tuple(ranks(tp1)), items=items), Spec(tp4, tuple(ranks(tp4)), items=items)) as both:
        room = next(rooms)
        ours, theirs = indices(room, items, items), indices(room + 1, items, items)
        both[1].call("open", room, both[0].call("address"), theirs)
        both[0].call("send", room, ours)
        assert {end[0] for end in both[1].call("wait", room)} == {"confirmed"}
        assert both[1].call("wrong", room, theirs) == []


def again(prefill: Process, decode: Process) -> None:
    """A transfer goes through."""
    room = next(rooms)
    ours, theirs = indices(room, ITEMS, 4), indices(room + 1, ITEMS, 4)
    decode.call("open", room, prefill.call("address"), theirs)
    prefill.call("send", room, ours)
    assert [end[0] for end in decode.call("wait", room, 20.0)] == ["confirmed"], decode.call("wait", room)
    assert decode.call("wrong", room, theirs) == []
