"""The plugin inside SGLang, with the engine's queue and manager as stand-ins; the real ones are in tests/engines."""

import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pdctl_transfer.rules
from pdctl.catalog import entries
from pdctl_transfer.layout.manifest import (
    Component,
    Engine,
    Entry,
    Group,
    Manifest,
    Model,
    Parallel,
    Role,
    Stage,
    Transfer,
)
from pdctl_transfer.plugins import judge, peer, sglang, sglang_handshake, sglang_state
from pdctl_transfer.plugins.guard import guarded


def layout(role: Role, page_size: int = 32, dtype: str = "auto", model: str = "m") -> Manifest:
    item = Entry(0, "k", "split", page_size, (Group(2, 1),), 64, page_size * 128)
    return Manifest(
        role=role,
        origin="live",
        engine=Engine("sglang", "0.5.23"),
        model=Model(model),
        transfer=Transfer("mooncake"),
        parallel=Parallel(attn_tp=1),
        page_size=page_size,
        kv_cache_dtype=dtype,
        kv_layout=None,
        speculative=None,
        stages=(Stage(0, (0, 1), (Component("kv", "page", (item,)),)),),
    )


class Receiver:
    """One request's receiving end, as far as the plugin touches it."""

    def __init__(self) -> None:
        self.conclude_state: int | None = None
        self.told_prefill = False

    def _get_bootstrap_info_from_server(self, *_: int) -> dict[str, Any]:
        return {"rank_ip": "127.0.0.1", "rank_port": 1}

    def abort(self) -> None:
        self.told_prefill = self.conclude_state == 0 and hasattr(self, "bootstrap_infos")


class Manager:
    """The decode engine's KV manager, as far as the plugin touches it."""

    def __init__(self) -> None:
        self.prefill_info_table: dict[str, Any] = {}
        self.reasons: dict[int, str] = {}
        self.statuses: dict[int, int] = {}

    def record_failure(self, room: int, reason: str) -> None:
        self.reasons[room] = reason

    def update_status(self, room: int, status: int) -> None:
        self.statuses[room] = status


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    conn = types.ModuleType("sglang.srt.disaggregation.base.conn")
    conn.KVPoll = SimpleNamespace(Failed=0)  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.disaggregation", "sglang.srt.disaggregation.base"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.base.conn", conn)
    monkeypatch.setattr(sglang_state, "state", sglang_state.State())
    monkeypatch.setattr(peer, "fetch_sizes", lambda _: {"attn_tp_size": 1, "pp_size": 1, "page_size": 32})
    sglang_state.state.manifest = layout("decode")


def queue_of(manager: Manager) -> SimpleNamespace:
    return SimpleNamespace(kv_manager=manager, _ensure_last_attempt_time={}, _ensure_retry_interval=1.0)


def handshake(
    monkeypatch: pytest.MonkeyPatch, theirs: Manifest | None, original: Callable[..., Any] | None = None
) -> tuple[Manager, Receiver, Any, list[str]]:
    monkeypatch.setattr(peer, "fetch", lambda _: theirs)
    manager, receiver, asked = Manager(), Receiver(), []
    request = SimpleNamespace(kv_receiver=receiver, req=SimpleNamespace(bootstrap_room=7))

    def accept(_: Any, addresses: dict[str, list[Any]]) -> Any:
        asked.extend(addresses)
        return addresses, []

    queue = queue_of(manager)
    result = sglang_handshake.handshake(original or accept, queue, {"127.0.0.1:9": [request]})
    return manager, receiver, result, asked


def test_a_fitting_prefill_is_left_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, _, (ready, remaining), asked = handshake(monkeypatch, layout("prefill"))
    assert asked == ["127.0.0.1:9"] == list(ready)
    assert (remaining, manager.reasons) == ([], {})


@pytest.mark.parametrize(
    ("theirs", "code"),
    [
        (layout("prefill", page_size=64), "PD1001"),
        (layout("prefill", dtype="fp8_e4m3"), "PD1002"),
        (layout("prefill", model="another"), "PD1013"),
    ],
)
def test_a_misfit_is_refused_on_both_sides_and_sglang_never_asked(
    monkeypatch: pytest.MonkeyPatch, theirs: Manifest, code: str
) -> None:
    """SGLang would raise in its scheduler; a request refused on one side only waits 300 s on the other."""
    manager, receiver, result, asked = handshake(monkeypatch, theirs)
    assert asked == []
    assert result == ({}, [])
    assert manager.reasons[7].startswith(code)
    assert manager.statuses[7] == 0
    assert receiver.told_prefill


def test_without_a_plugin_on_prefill_its_bootstrap_answer_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_state.state.manifest = layout("decode", page_size=64)
    manager, _, _, asked = handshake(monkeypatch, None)
    assert asked == []
    assert manager.reasons[7].startswith("PD1001")


@pytest.mark.code("PD3110")
def test_a_check_of_sglangs_own_fails_the_request_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise RuntimeError("PD decode DCP requires an MLA or hybrid-MLA KV pool.")

    manager, _, result, _ = handshake(monkeypatch, layout("prefill"), dies)
    assert result == ({}, [])
    assert manager.reasons[7] == "PD3110: PD decode DCP requires an MLA or hybrid-MLA KV pool."


def test_a_refused_prefill_is_asked_again_once_it_may_have_been_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    handshake(monkeypatch, layout("prefill", page_size=64))
    assert handshake(monkeypatch, layout("prefill"))[3] == []  # within the time it is remembered
    monkeypatch.setattr(sglang_handshake, "_RECHECK_S", 0.0)
    assert handshake(monkeypatch, layout("prefill"))[3] == ["127.0.0.1:9"]


def test_a_prefill_that_does_not_answer_is_left_to_sglangs_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: str) -> Any:
        raise peer.Unanswered("connection refused")

    monkeypatch.setattr(peer, "fetch", gone)
    assert sglang_handshake._verdict(queue_of(Manager()), "127.0.0.1:9") is None


def test_a_prefill_whose_ranks_have_not_all_spoken_is_waited_for_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between its bootstrap server's first answer and its layout a misfit would slip through."""

    def early(_: str) -> Any:
        raise peer.NotYet("HTTP 503")

    monkeypatch.setattr(peer, "fetch", early)
    queue = queue_of(Manager())
    assert sglang_handshake.handshake(pytest.fail, queue, {"a:1": ["request"]}) == ({}, ["request"])
    assert sglang_handshake._too_early(queue, "a:1")  # and the scheduler is not blocked by asking at every step
    sglang_state.state.early["a:1"] -= sglang_handshake._REGISTER_S + 1
    assert sglang_handshake._verdict(queue, "a:1") is None


def test_what_fails_inside_the_plugin_leaves_the_handshake_to_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a field that another version renamed")

    monkeypatch.setattr(sglang_handshake, "judge", broken)
    assert handshake(monkeypatch, layout("prefill"))[3] == ["127.0.0.1:9"]


def test_a_failure_of_ours_is_logged_once_and_never_raised(caplog: pytest.LogCaptureFixture) -> None:
    @guarded(-1)
    def broken() -> int:
        raise ValueError("always the same")

    assert [broken(), broken()] == [-1, -1]
    assert len([r for r in caplog.records if "the engine goes on without it" in r.message]) == 1


def test_the_variable_turns_all_of_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_PLUGIN", "off")
    registry = types.ModuleType("sglang.srt.plugins.hook_registry")
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", registry)  # has no HookRegistry: would raise
    sglang.register()


@pytest.mark.code("PD3111")
def test_failures_and_transfers_become_events() -> None:
    sglang._failed(None, None, 7, "KVTransferError: decode instance could be dead")
    sglang._failed(None, None, 8, "PD1001: page size 32 on prefill, 64 on decode")
    metric = SimpleNamespace(transfer_latency_s=0.25, transfer_total_bytes=4096)
    sglang._transferred(metric, SimpleNamespace(bootstrap_room=9))
    answer = SimpleNamespace(internal_state={})
    sglang._show(answer)
    shown = answer.internal_state["pdctl"]
    failed = [event["data"]["code"] for event in shown["events"] if event["what"] == "failed"]
    assert failed == ["PD3111", "PD1001"]
    written = next(event for event in shown["events"] if event["what"] == "written")
    assert (written["room"], written["data"]["bytes"], written["data"]["seconds"]) == (9, 4096, 0.25)
    assert 'outcome="failed"} 2' in shown["metrics"]
    assert shown["layout"]["page_size"] == 32


def test_codes_that_are_no_errors_are_those_of_the_catalog() -> None:
    """The core cannot read the catalog; a code that is demoted there must not refuse a pair here."""
    rules = Path(pdctl_transfer.rules.__file__).parent
    raised = {code for path in rules.glob("*.py") for code in re.findall(r'"(PD1\d{3})"', path.read_text())}
    known = entries()
    assert {code for code in raised if known[code].severity != "error"} == judge.NOT_ERRORS
