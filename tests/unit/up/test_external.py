"""Looking at a fleet that somebody else started, with endpoints that answer as SGLang, vLLM, routers and others do."""

import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pdctl.fleet import parse_fleet
from pdctl.running.external import by_file
from pdctl.up import heard
from pdctl.up.status import FleetView, status_of
from tests.unit.engines.outside import HTML, OK, SGLANG_ROUTE, Answers, at, router, sglang, vllm, worker
from tests.unit.engines.serving import Recorded, serving


def look(prefill: Any, decode: Any, engine: str = "sglang", more: str = "", keys: str = "") -> FleetView:
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-llama}\n"
        f"engine: {engine}\nlauncher: {{kind: external}}\n"
        f"prefill: {{urls: [{prefill}]{keys}}}\ndecode: {{urls: [{decode}]{keys}}}\n{more}"
    )
    return status_of(by_file(parse_fleet(text.encode(), Path("f.yaml"))))


def states(view: FleetView) -> dict[str, str]:
    return {unit.name: unit.state for unit in view.units}


def test_an_sglang_pair_behind_a_router() -> None:
    with at(sglang("prefill")) as p, at(sglang("decode")) as d:
        port = p.server_address[1]
        p.answers |= sglang("prefill", port)
        with at(router(worker(p.url, "prefill", bootstrap_port=port), worker(d.url + "/", "decode"))) as r:
            view = look(p.url, d.url, more=f"router: {{url: '{r.url}'}}\n")
    assert (view.ok, view.phase, view.notes) == (True, "external", [])
    prefill, decode, _ = (unit["answers"] for unit in view.document()["units"])
    assert prefill == {
        "healthy": True,
        "model": ["/models/tiny-llama"],
        "role": "prefill",
        "version": "0.5.23",
        "registry": True,
        "routed": True,
        "not_shown": [],
    }
    assert decode == prefill | {"role": "decode", "registry": None}


def test_what_vllm_does_not_show_is_not_shown() -> None:
    with at(vllm()) as one, at(vllm()) as two:
        view = look(one.url, two.url, "vllm")
    answers = [unit["answers"] for unit in view.document()["units"]]
    assert [(one["role"], one["registry"], one["routed"]) for one in answers] == [(None, None, None)] * 2
    assert answers[0]["not_shown"] == ["its role"], "a gauge tells of decode alone that it takes KV"
    assert (view.ok, answers[1]["not_shown"]) == (True, [])


@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "says"),
    [
        ("sglang", sglang("decode"), sglang("decode"), "role decode, f.yaml:6 says prefill"),
        ("sglang", sglang("null"), sglang("decode"), "role aggregate, f.yaml:6 says prefill"),
        ("sglang", sglang("prefill", model="other"), sglang("decode"), "model other, f.yaml:3 says tiny-llama"),
        ("sglang", sglang("prefill", engine="reference"), sglang("decode"), "engine reference, f.yaml:4 says sglang"),
        ("vllm", vllm(), vllm(takes_kv=False), "role one that takes no KV, f.yaml:7 says decode"),
        ("vllm", vllm(**{"pdctl/layout": (200, b'{"role": "decode"}')}), vllm(), "role decode, f.yaml:6"),
        ("vllm", sglang("prefill"), vllm(), "/version: not what vLLM says there: no engine of vLLM's"),
        ("sglang", vllm(), sglang("decode"), "/server_info: not what SGLang says there"),
        ("sglang", {**router(), "/health": OK}, sglang("decode"), "a router answers there, no engine"),
        (
            "sglang",
            {"/health": HTML, "/server_info": HTML},
            sglang("decode"),
            "/server_info: not JSON: <!DOCTYPE html>",
        ),
        ("vllm", {"/health": HTML, "/version": HTML}, vllm(), "/version: not JSON: <!DOCTYPE html>"),
        ("sglang", {}, sglang("decode"), "/health: HTTP 404"),
        ("sglang", {"/health": (302, b"")}, sglang("decode"), "/health: HTTP 302, a redirect, which is not followed"),
        ("sglang", {"/health": (401, b"")}, sglang("decode"), "/health: it takes no key, or another one: HTTP 401"),
    ],
)
def test_what_is_not_the_engine_that_the_file_means(engine: str, prefill: Answers, decode: Answers, says: str) -> None:
    with at(prefill) as p, at(decode) as d:
        view = look(p.url, d.url, engine)
        wrong = [unit for unit in view.units if unit.state == "wrong"]
        notes = [f"{unit.heard.why}" for unit in wrong if unit.heard]
        assert [(says in note, unit.url in note) for note, unit in zip(notes, wrong, strict=True)] == [(True, True)]
    assert not view.ok


def test_half_dead_engines_are_not_ready() -> None:
    """Healthy by its own word, but what every engine answers it does not; or not healthy."""
    with at(sglang("prefill") | {"/server_info": (500, b"scheduler died")}) as p, at({"/health": (503, b"")}) as d:
        view = look(p.url, d.url)
    assert states(view) == {"prefill-0": "unready", "decode-0": "unready"}
    assert "it says that it is healthy, and does not answer: " in view.notes[0]
    assert "HTTP 500: scheduler died" in view.notes[0]
    assert [unit.heard.healthy for unit in view.units if unit.heard] == [True, False]


def test_who_cannot_be_reached_is_said_with_host_and_port() -> None:
    view = look("http://no-such-host.invalid:30000", "'http://[::1]:1/some/prefix'")
    assert states(view) == {"prefill-0": "unreachable", "decode-0": "unreachable"}
    assert view.notes[0].startswith("prefill-0: http://no-such-host.invalid:30000/health: ")
    assert view.notes[1].startswith("decode-0: http://[::1]:1/some/prefix/health: ")


def test_a_path_before_the_endpoints_is_kept() -> None:
    answers = {f"/engines/p0{path}": answer for path, answer in sglang("prefill").items()}
    with at(answers) as p, at(sglang("decode")) as d:
        assert look(f"{p.url}/engines/p0/", d.url).units[0].state == "ready"


def test_what_speaks_no_http_and_no_tls() -> None:
    with at(sglang("decode")) as d:
        view = look(d.url.replace("http:", "https:"), d.url)
    assert states(view) == {"prefill-0": "unreachable", "decode-0": "ready"}
    assert view.notes[0].startswith(f"prefill-0: https://127.0.0.1:{d.server_address[1]}/health: ")


class Together(Recorded):
    """Answers once all of the fleet have been asked."""

    def do_GET(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self.server.all_asked.wait(20)  # type: ignore[attr-defined]
        self.answer(503, b"")


def test_all_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they would not answer: each waits for the last."""
    monkeypatch.setattr(heard, "ANSWER_S", 30.0)
    barrier = threading.Barrier(24)
    with ExitStack() as stack:
        engines = [stack.enter_context(serving(Together, all_asked=barrier)) for _ in range(24)]
        urls = [f"http://127.0.0.1:{one.server_address[1]}" for one in engines]
        view = look(", ".join(urls[1:]), urls[0])
    assert set(states(view).values()) == {"unready"}
    assert not barrier.broken


def test_an_engine_that_takes_connections_and_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        view = look(f"http://127.0.0.1:{mute.getsockname()[1]}", "http://127.0.0.1:1")
    assert states(view) == {"prefill-0": "unreachable", "decode-0": "unreachable"}
    assert "no answer in time (0.2 s)" in view.notes[0]


# ---- keys ----


def test_a_key_goes_to_the_url_that_the_file_names_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "k")
    with at({}) as elsewhere, at(sglang("prefill")) as p, at(sglang("decode")) as d:
        p.answers["/server_info"] = (307, b"")
        view = look(p.url, d.url, keys=", api_key_env: FLEET_KEY")
        assert {key for _, key in p.asked + d.asked if key} == {"Bearer k"}
        assert elsewhere.asked == []
    assert states(view) == {"prefill-0": "wrong", "decode-0": "ready"}


def test_without_its_key_an_engine_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLEET_KEY", raising=False)
    with at(sglang("prefill") | {"/server_info": (401, b"")}) as p, at(sglang("decode")) as d:
        view = look(p.url, d.url, keys=", api_key_env: FLEET_KEY")
    assert (
        "prefill-0: not shown: it asks for a key, and the environment variable FLEET_KEY is not set here"
        in view.notes[0]
    )
    assert view.document()["units"][0]["answers"]["role"] is None


# ---- the bootstrap server and the router ----


def test_a_bootstrap_server_that_is_not_there() -> None:
    """Where the file says where it is, decode engines find it there, or nowhere; a guess is no fault."""
    with at(sglang("prefill", bootstrap=1)) as p, at(sglang("decode")) as d:
        guessed = look(p.url, d.url)
        stated = look(f"{{url: '{p.url}', bootstrap: 1}}", d.url)
        p.answers[SGLANG_ROUTE] = (503, b"")
        waiting = look(f"{{url: '{p.url}', bootstrap: {p.server_address[1]}}}", d.url)
    assert guessed.units[0].state == "ready"
    [note] = guessed.notes
    assert note.startswith(
        "prefill-0: not shown: its bootstrap server, by its own word at 127.0.0.1: http://127.0.0.1:1/"
    )
    assert stated.units[0].state == waiting.units[0].state == "unready"
    assert "its bootstrap server: http://127.0.0.1:1/route" in stated.notes[0]
    assert "not all ranks have registered" in waiting.notes[0]


@pytest.mark.parametrize("answer", [(404, b"not found"), (400, b"missing"), HTML])
def test_what_answers_at_the_bootstrap_port_and_says_nothing_of_ranks_is_no_proof(answer: tuple[int, bytes]) -> None:
    """An older release asks by other names; the engine's HTTP port, or a web server, is none at all."""
    with at(sglang("prefill") | {SGLANG_ROUTE: answer}) as p, at(sglang("decode")) as d:
        view = look(f"{{url: '{p.url}', bootstrap: {p.server_address[1]}}}", d.url)
    assert [unit["answers"]["registry"] for unit in view.document()["units"]] == [
        None if answer != HTML else False,
        None,
    ]
    assert "its bootstrap server: " in view.notes[0]


Change = Callable[[Any, Any], list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("listed", "state", "says"),
    [
        (lambda p, d: [worker(p, "prefill")], "unrouted", "the router has no worker "),
        (lambda p, d: [worker(p, "prefill"), worker(d, "prefill")], "unrouted", "the router takes it for prefill"),
        (lambda p, d: [worker(p, "prefill"), worker(d, "decode", is_healthy=False)], "unrouted", "no requests: ready"),
        (lambda p, d: [worker(p, "prefill"), worker("http://d0:1", "decode")], "ready", "may know it as http://d0:1"),
    ],
)
def test_an_engine_that_the_router_does_not_use(listed: Change, state: str, says: str) -> None:
    with at(sglang("prefill")) as p, at(sglang("decode")) as d, at(router(*listed(p.url, d.url))) as r:
        view = look(p.url, d.url, more=f"router: {{url: '{r.url}'}}\n")
    assert states(view)["decode-0"] == state
    assert any(says in note and note.startswith("decode-0: ") for note in view.notes), view.notes


def test_a_router_that_sends_decode_engines_to_another_bootstrap_port() -> None:
    with at(sglang("prefill", bootstrap=8998)) as p, at(sglang("decode")) as d:
        workers = worker(p.url, "prefill", bootstrap_port=9000), worker(d.url, "decode")
        with at(router(*workers)) as r:
            view = look(p.url, d.url, more=f"router: {{url: '{r.url}'}}\n")
    assert states(view)["prefill-0"] == "unrouted"
    assert "to its bootstrap port 9000, which is 8998" in view.notes[0]


@pytest.mark.parametrize(
    ("answers", "state", "says"),
    [
        ({"/readiness": (503, b'{"status":"not ready"}')}, "unready", 'HTTP 503: {"status":"not ready"}'),
        ({"/health": OK}, "wrong", "HTTP 404: no smg router answers there"),
        ({"/readiness": HTML}, "wrong", "no router: <!DOCTYPE html>"),
        ({"/readiness": (200, b"{}"), "/workers": (401, b"")}, "ready", "not shown: its list of workers"),
    ],
)
def test_a_router_that_does_not_route_or_is_none(answers: Answers, state: str, says: str) -> None:
    with at(sglang("prefill")) as p, at(sglang("decode")) as d, at(answers) as r:
        view = look(p.url, d.url, more=f"router: {{url: '{r.url}'}}\n")
    assert states(view)["router"] == state
    assert says in next(note for note in view.notes if note.startswith("router: "))
    assert {unit["answers"]["routed"] for unit in view.document()["units"]} == {None}
