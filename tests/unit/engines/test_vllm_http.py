"""The routes on vLLM's HTTP port, with the engine behind them as a stand-in."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.testclient import TestClient

from pdctl.derive import Request, derive
from pdctl.engines.builtin_models import CONFIGS
from pdctl_transfer.layout.read import decode_manifest, encode_manifest
from pdctl_transfer.plugins import vllm, vllm_nixl
from pdctl_transfer.plugins.vllm_http import METHOD, Endpoint
from pdctl_transfer.plugins.vllm_state import PEERS, State, Way, state
from pdctl_transfer.telemetry import Tally, Telemetry

WHOLE = derive(Request(engine="vllm", role="decode", config=CONFIGS["tiny-llama"], page_size=128, pp=2)).manifest


class Engine:
    """An engine client: ranks in the order in which vLLM answers for them."""

    def __init__(self, *ranks: Callable[[int], str]) -> None:
        self.ranks, self.asked = ranks, 0

    async def collective_rpc(self, method: str, timeout: float, args: tuple[int]) -> list[str]:
        assert method == METHOD
        self.asked += 1
        return [rank(*args) for rank in self.ranks]


def rank(layout: Any, *events: dict[str, Any]) -> Callable[[int], str]:
    document = None if layout is None else json.loads(encode_manifest(layout))
    return lambda after: json.dumps({"layout": document, "events": [e for e in events if e["serial"] > after]})


def client(engine: Engine | None) -> TestClient:
    endpoint, app = Endpoint(), Starlette()
    endpoint.attach_router(app)
    endpoint._engine = engine
    return TestClient(app)


def test_stages_of_all_ranks_are_one_layout_asked_for_once() -> None:
    engine = Engine(*(rank(replace(WHOLE, stages=(stage,))) for stage in WHOLE.stages for _tp in range(2)))
    http = client(engine)
    for _ in range(2):
        assert decode_manifest(http.get("/pdctl/layout").content, "test") == WHOLE
    assert engine.asked == 1


@pytest.mark.parametrize("engine", [None, Engine(rank(None))])
def test_an_engine_that_is_no_side_of_a_pair_has_no_layout(engine: Engine | None) -> None:
    assert client(engine).get("/pdctl/layout").status_code == 404


def test_events_say_their_rank_and_go_on_after_a_serial_number() -> None:
    http = client(Engine(rank(None, {"serial": 1}, {"serial": 2}), rank(None, {"serial": 1})))
    assert http.get("/pdctl/events").json() == [
        {"rank": 0, "serial": 1},
        {"rank": 0, "serial": 2},
        {"rank": 1, "serial": 1},
    ]
    assert http.get("/pdctl/events?after=1").json() == [{"rank": 0, "serial": 2}]
    assert http.get("/pdctl/events?after=x").status_code == 400


def test_ways_are_told_once_a_peer() -> None:
    def one(*ways: dict[str, str]) -> Callable[[int], str]:
        return lambda _: json.dumps({"layout": None, "events": [], "ways": ways})

    core = {"peer": "a:1", "way": "core", "code": "", "reason": ""}
    other = {"peer": "b:1", "way": "engine", "code": "PD3149", "reason": "no room"}
    assert client(Engine(one(core), one(core, other))).get("/pdctl/ways").json() == [core, other]
    assert client(Engine(rank(None))).get("/pdctl/ways").json() == []


def test_a_way_is_said_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """In the log once, and the last one counts; of too many peers the oldest is forgotten."""
    caplog.set_level("INFO")
    one = State()
    for way in (Way("a:1", "core"), Way("a:1", "core"), Way("a:1", "engine", "PD3149", "no room")):
        one.went(way)
    assert [record.args for record in caplog.records] == [
        ("a:1", "core", ""),
        ("a:1", "engine", " PD3149: no room"),
    ]
    for port in range(PEERS):
        one.went(Way(f"b:{port}", "core"))
    assert len(one.ways) == PEERS
    assert "a:1" not in one.ways


def test_a_worker_reports_what_its_process_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "manifest", WHOLE)
    monkeypatch.setattr(state, "telemetry", Telemetry("decode", "pp0tp0", 4))
    state.telemetry.written(-1, "p", "all", "engine", Tally(2, 4096), 0, "r")
    shown = json.loads(vllm.report(None, 0))
    assert decode_manifest(json.dumps(shown["layout"]).encode(), "test") == WHOLE
    assert [(event["request"], event["data"]["blocks"]) for event in shown["events"]] == [("r", 2)]
    monkeypatch.setattr(state, "ways", {"a:1": Way("a:1", "core")})
    later = json.loads(vllm.report(None, 1))
    assert later["events"] == []
    assert later["ways"] == [{"peer": "a:1", "way": "core", "code": "", "reason": ""}]


def test_a_read_over_nixl_is_an_event_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "telemetry", Telemetry("decode", "pp0tp0", 4))
    seen = SimpleNamespace(totalBytes=4096, descCount=2, xferDuration=1500)
    worker = SimpleNamespace(
        nixl_wrapper=SimpleNamespace(get_xfer_telemetry=lambda _: seen),
        _recving_transfers={"other": [6], "r": [7, 8]},
        _recving_metadata={"r": SimpleNamespace(remote=SimpleNamespace(engine_id="prefill"))},
    )
    vllm_nixl.watch(worker)
    assert worker.nixl_wrapper.get_xfer_telemetry(8) is seen
    (event,) = state.telemetry.events()
    assert (event.request, event.peer) == ("r", "prefill")
    assert event.data == {"way": "engine", "bytes": 4096, "blocks": 2, "seconds": 0.0015}


@pytest.mark.code("PD3111")
def test_requests_end_in_one_event_each_with_the_code_that_refused_them() -> None:
    one = State()
    one.failing |= {"refused": "PD1020: 128 and 256", "late": "notice"}
    one.settle(None, SimpleNamespace(finished_recving={"good"}, failed_recving=set()))
    one.settle(None, SimpleNamespace(finished_recving={"refused", "broken"}, failed_recving={"refused", "broken"}))
    ended = {event.request: event.data.get("code", event.what) for event in one.telemetry.events()}
    assert ended == {"good": "confirmed", "refused": "PD1020", "broken": "PD3111"}


def test_a_notice_that_cannot_be_sent_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "failing", {})
    vllm_nixl.note_failure(None, "notification_failed", "r", error=OSError("gone"))
    vllm_nixl.note_failure(None, failure_type="handshake_setup_failed", req_id=None, error=OSError("gone"))
    assert state.failing == {}
    vllm_nixl.note_failure(None, failure_type="handshake_failed", req_id="r", error=RuntimeError("PD1020: 128, 256"))
    assert state.failing == {"r": "PD1020: 128, 256"}
