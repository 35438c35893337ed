"""A request of SGLang by the core, over stand-ins: what the engine is told at each moment, and what it never must."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.sglang_install import hold
from pdctl_transfer.plugins.sglang_table import POLLS
from pdctl_transfer.plugins.sglang_threads import Watch
from pdctl_transfer.plugins.sglang_ways import Offer, Way
from tests.unit.engines.sglang_ends import ADDRESS, PAGE, ROOM, OurSender, ids, manager, receiver, sender

BY_ENGINE = Way(ADDRESS, "engine", "PD3135", "equal")


def until(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


# ---- prefill ----


def test_both_ways_are_open_until_decode_asks_the_core() -> None:
    one = sender()
    assert one.poll() == POLLS["Bootstrapping"]
    one.handle.skip, one.handle.state = {"kv": 2}, "waiting"
    assert one.poll() == POLLS["WaitingForInput"]
    assert one.pop_decode_prefix_len() == 2 * PAGE
    assert one.get_max_transfer_tokens() is None


def test_a_prompt_goes_in_installments_and_its_state_and_row_with_the_last() -> None:
    one = sender()
    one.handle.state = "waiting"
    one.poll()
    one.pop_decode_prefix_len()
    one.init(3)
    one.send(ids(5, 6), None, 8)
    one.send(ids(9), [ids(1)], 3)
    assert one.handle.sent == [
        ({"kv": [5, 6]}, b"", False, {}),
        ({"kv": [9], "mamba": [1]}, b"row3", True, {}),
    ]
    assert (one.calls, one.recorded) == ([], 3)
    one.handle.state = "transferring"
    assert one.poll() == POLLS["Transferring"]
    one.handle.state = "confirmed"
    assert one.poll() == POLLS["Success"]
    assert one._transfer_metric.transfer_latency_s >= 0


def test_what_decode_holds_is_said_to_be_left_out() -> None:
    one = sender()
    one.handle.skip, one.handle.state = {"kv": 2}, "waiting"
    one.poll()
    one.init(1)
    one.send(ids(9), None, 3)
    assert one.handle.sent == [({"kv": [9]}, b"row3", True, {"kv": 2})]


def test_ids_that_are_still_being_copied_are_waited_for_in_order() -> None:
    """A later chunk without an event must not overtake one that waits for the device."""
    one, gate = sender(), threading.Event()
    one.handle.state = "waiting"
    one.poll()
    one.init(2)
    one.send(ids(5), None, 4, SimpleNamespace(synchronize=lambda: gate.wait(10)))
    one.send(ids(6), None, 4)
    assert one.handle.sent == []
    gate.set()
    done = threading.Event()
    one.kv_mgr.core.behind.call(done.set, waits=True)
    assert done.wait(10)
    assert [sent[0]["kv"] for sent in one.handle.sent] == [[5], [6]]


def test_a_decode_that_takes_the_engines_way_is_served_by_it() -> None:
    one = sender()
    one.kv_mgr.update_status(ROOM, POLLS["WaitingForInput"])  # its ids came over the engine's socket
    assert one.poll() == POLLS["WaitingForInput"]
    assert one.way == "engine"
    assert one.handle.ended == ["withdrawn: decode took the engine's own way"]
    one.init(1)
    one.send(ids(5), None, 4)
    assert (one.calls, one.handle.sent) == (["send"], [])
    assert one.pop_decode_prefix_len() == -1
    assert one.poll() == POLLS["WaitingForInput"]  # and the withdrawn room says nothing more


def test_a_room_that_decode_declines_still_waits_for_the_engines_way() -> None:
    one = sender()
    one.handle.state = "withdrawn"
    assert one.poll() == POLLS["Bootstrapping"]
    one.kv_mgr.update_status(ROOM, POLLS["WaitingForInput"])
    assert one.poll() == POLLS["WaitingForInput"]
    assert one.way == "engine"


def test_a_failure_of_the_core_is_the_requests_with_its_code() -> None:
    one = sender()
    one.handle.state = "waiting"
    one.poll()
    one.handle.fail("PD4004", "decode is gone")
    assert one.poll() == POLLS["Failed"]
    assert one.kv_mgr.reasons[ROOM] == "PD4004 (decode) decode is gone"


def test_a_request_that_failed_in_the_engine_ends_in_the_core() -> None:
    one = sender()
    one.kv_mgr.update_status(ROOM, POLLS["Failed"])
    assert one.poll() == POLLS["Failed"]
    assert one.handle.ended == ["failed in the engine"]


@pytest.mark.parametrize("act", ["abort", "clear"])
def test_a_request_that_the_engine_drops_ends_in_the_core(act: str) -> None:
    one = sender()
    getattr(one, act)()
    assert len(one.handle.ended) == 1


def test_without_a_core_it_is_the_engines_sender() -> None:
    one = sender(core=False)
    one.kv_mgr.update_status(ROOM, POLLS["WaitingForInput"])
    assert one.poll() == POLLS["WaitingForInput"]
    one.send(ids(1), None, 4)
    assert one.calls == ["send"]


@pytest.mark.code("PD3140")
def test_a_defect_fails_that_request_and_the_engine_lives(caplog: pytest.LogCaptureFixture) -> None:
    one = sender()
    one.handle.state = "waiting"
    one.poll()
    one.init(1)
    one.handle.send = None  # not callable
    one.send(ids(5), None, 4)
    assert one.poll() == POLLS["Failed"]
    assert one.kv_mgr.reasons[ROOM].startswith("PD3140: TypeError")
    assert len(one.handle.ended) >= 1


def test_a_defect_while_a_request_arrives_is_contained_too() -> None:
    mgr = manager()
    mgr.core.expect = None
    one = OurSender(mgr, ADDRESS, ROOM, False)
    assert one.poll() == POLLS["Failed"]


# ---- decode ----


def test_a_request_is_asked_for_by_the_core_and_its_row_is_written_before_success() -> None:
    one = receiver()
    assert one.poll() == POLLS["WaitingForInput"]
    one.send_metadata(ids(4, 5), 2, [ids(8)], 8)
    core = one.kv_mgr.core
    assert core.asked == [(ROOM, ("127.0.0.1", 5), {"kv": [4, 5], "mamba": [8]}, 8)]
    assert one.calls == ["init"]
    assert one.poll() == POLLS["WaitingForInput"]
    one.handle.state = "transferring"
    assert one.poll() == POLLS["Transferring"]
    one.handle.state, one.handle.metadata, one.handle.reusable = "confirmed", b"row", True
    assert one.poll() == POLLS["Success"]
    assert core.rows.written == {2: b"row"}
    one.clear()
    assert not core.held.knows(ROOM)


def test_a_pair_by_the_engines_way_never_touches_the_core() -> None:
    one = receiver(way=BY_ENGINE)
    one.send_metadata(ids(4), 2, None, 0)
    assert one.calls == ["init", "send_metadata"]
    assert one.kv_mgr.core.asked == []


@pytest.mark.parametrize("named", [{"destination": SimpleNamespace(value="host")}, {"device_kv_indices": ids(1)}])
def test_what_goes_elsewhere_than_the_pages_goes_the_engines_way(named: dict[str, Any]) -> None:
    one = receiver()
    one.send_metadata(ids(4), 2, None, 0, **named)
    assert one.calls == ["init", "send_metadata"]


def test_a_failed_requests_pages_are_held_until_the_core_proves_that_nobody_writes() -> None:
    one = receiver()
    one.send_metadata(ids(4), 2, None, 0)
    one.handle.fail("PD4005", "frozen")
    assert one.poll() == POLLS["Failed"]
    assert one.kv_mgr.reasons[ROOM] == "PD4005 (decode) frozen"
    one.clear()  # by failure_exception
    one.ensure_abort_notified(force_arm=True)
    assert one.abort_notified
    assert one.calls == ["init"]  # nothing by the engine's socket
    assert not one.kv_mgr.is_abort_release_safe(ROOM, 0)
    one.handle.reusable = True
    assert one.kv_mgr.is_abort_release_safe(ROOM, 2)  # whatever acknowledgements are missing
    one.kv_mgr.clear_deferred_abort_state(ROOM)
    assert not one.kv_mgr.core.held.knows(ROOM)
    assert one.kv_mgr.done == ["cleared"]


def test_an_engine_that_was_told_not_to_hold_pages_holds_nothing() -> None:
    one = receiver()
    one.kv_mgr.enable_deferred_decode_kv_release = False
    one.send_metadata(ids(4), 2, None, 0)
    one.handle.fail("PD4005", "frozen")
    one.poll()
    one.clear()
    assert not one.kv_mgr.core.held.knows(ROOM)


def test_rooms_by_the_engines_way_count_acknowledgements_as_before() -> None:
    assert manager().is_abort_release_safe(ROOM, 0)
    assert not manager().is_abort_release_safe(ROOM, 1)


def test_an_abort_before_the_ids_travels_by_the_engines_socket_and_after_them_by_the_core() -> None:
    early, late = receiver(), receiver()
    early.abort()
    assert early.calls == ["init", "told"]
    late.send_metadata(ids(4), 2, None, 0)
    late.abort()
    assert late.calls == ["init"]
    assert late.handle.ended == ["AbortReq"]


def test_the_engine_gives_pages_of_the_core_back_by_proof_alone() -> None:
    """Its own patience ends after 30 s, whoever still writes."""
    late = receiver()
    late.send_metadata(ids(4), 2, None, 0)
    by_core, by_engine = SimpleNamespace(kv_receiver=late), SimpleNamespace(kv_receiver=receiver(way=BY_ENGINE))
    queue = SimpleNamespace(_deferred_releases=[])
    for request in (by_core, by_engine):
        queue._deferred_releases.append((request, 1.0, 31.0, 2, 1))
        hold(None, queue, request)
    assert [entry[2] for entry in queue._deferred_releases] == [float("inf"), 31.0]


@pytest.mark.code("PD3142")
def test_rows_of_another_kind_fail_the_request() -> None:
    one = receiver()
    one.send_metadata(ids(4), 2, None, 0)

    def unlike(*_: Any) -> None:
        raise TransferError("rows of [4] bytes, [8] here", code="PD3142")

    one.kv_mgr.core.rows.unpack = unlike
    one.handle.state = "confirmed"
    assert one.poll() == POLLS["Failed"]
    assert one.kv_mgr.reasons[ROOM].startswith("PD3142: rows of")


def test_a_defect_on_decode_fails_that_request() -> None:
    one = receiver()
    one.kv_mgr.core.ask = None
    one.send_metadata(ids(4), 2, None, 0)
    assert one.poll() == POLLS["Failed"]
    assert one.kv_mgr.reasons[ROOM].startswith("PD3140")


def test_a_node_that_failed_is_forgotten_and_one_in_doubt_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fast restart the registry listens at another port, and no heartbeat was missed."""
    one = receiver()
    ways = one.kv_mgr.ways
    one.send_metadata(ids(4), 2, None, 0)
    one.handle.fail("PD4001", "refused")
    one.poll()
    monkeypatch.setattr("pdctl_transfer.plugins.sglang_registry.fetch", lambda _: Offer("ready", "127.0.0.1", 6))
    one.conclude_state = None
    one.init(0)
    assert one.registry == ("127.0.0.1", 6)
    one.kv_mgr._handle_node_failure(ADDRESS)
    assert ways.registry(ADDRESS) is None
    assert one.kv_mgr.done == ["node failed"]


def test_on_a_later_stage_of_prefill_requests_are_looked_at_without_being_asked() -> None:
    """SGLang polls on the first stage alone, and collects from the others what they have written down."""
    mgr = manager()
    mgr.core.watch = Watch()
    one = OurSender(mgr, ADDRESS, ROOM, False)
    one.handle.skip, one.handle.state = {"kv": 1}, "waiting"
    until(lambda: mgr.request_status[ROOM] == POLLS["WaitingForInput"])
    assert (one.way, one.pop_decode_prefix_len()) == ("core", PAGE)
    one.handle.fail("PD4004")
    until(lambda: mgr.request_status[ROOM] == POLLS["Failed"])
    one.clear()
    until(lambda: mgr.core.watch._looks == [])
