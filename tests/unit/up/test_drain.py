"""Taking engines off a router's list and putting them back, with lists that answer in every way that real ones do."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pdctl.errors import GateError
from pdctl.fleet import parse_fleet
from pdctl.launch.local import LocalLauncher
from pdctl.routers import Backend
from pdctl.up.context import Bringup, Silent
from pdctl.up.drain import Enlisted, drain, enlist, under_way
from pdctl.up.plan import make_plan

TEXT = (
    "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\nprefill: {}\ndecode: {}\n"
)


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, text: str) -> None:
        if text not in self.lines:
            self.lines.append(text)


class Stub:
    """A router's list, and an engine's metrics, at one address."""

    def __init__(self) -> None:
        self.workers: list[dict[str, Any]] | None = []
        self.takes = True
        self.leaves_at_once = True
        self.metrics = ""
        self.asked: list[str] = []
        self.status = 202
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    return self._answer(200 if stub.metrics else 404, stub.metrics.encode())
                body = {} if stub.workers is None else {"workers": stub.workers}
                stub.tick()
                self._answer(200, json.dumps(body).encode())
                return None

            def do_DELETE(self) -> None:
                stub.asked.append(f"DELETE {self.path}")
                gone = self.path.rpartition("/")[2]
                for worker in stub.workers or []:
                    if worker["id"] == gone:
                        worker["status"] = "draining"
                if stub.leaves_at_once and stub.workers:
                    stub.workers = [worker for worker in stub.workers if worker["id"] != gone]
                self._answer(stub.status, b"{}")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stub.asked.append(f"POST {body['worker_type']} {body.get('bootstrap_port')}")
                if stub.takes and stub.workers is not None:
                    stub.workers.append({"id": "new", **body})
                self._answer(stub.status, b"{}")

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tick(self) -> None:
        """Each time the list is looked at, a request of a draining worker ends."""
        for worker in self.workers or []:
            if worker.get("status") == "draining":
                worker["load"] = worker["load"] - 1
        self.workers = self.workers and [w for w in self.workers if w.get("status") != "draining" or w["load"] > 0]


@pytest.fixture
def stub() -> Iterator[Stub]:
    one = Stub()
    yield one
    one.server.shutdown()
    one.server.server_close()


def bringup(stub: Stub, tmp_path: Path, drain_s: float = 20.0) -> tuple[Bringup, Said]:
    loaded, said = parse_fleet(TEXT.encode(), Path("f.yaml")), Said()
    plan = make_plan(loaded)
    return Bringup(loaded, plan, LocalLauncher(tmp_path), said, serving_at=stub.url, drain_s=drain_s), said


def worker(stub: Stub, load: int = 0) -> dict[str, Any]:
    return {"id": "1", "url": stub.url, "worker_type": "decode", "is_healthy": True, "status": "ready", "load": load}


def test_requests_are_waited_for_that_the_router_still_counts(stub: Stub, tmp_path: Path) -> None:
    """smg: the worker stays on the list until its last request has ended."""
    stub.workers, stub.leaves_at_once = [worker(stub, load=3)], False
    run, said = bringup(stub, tmp_path)
    drain(run, {"decode-0": stub.url})
    assert stub.asked == ["DELETE /workers/1"]
    assert stub.workers == []
    assert "draining decode-0 (2)" in said.lines


def test_requests_are_waited_for_that_only_the_engine_knows(stub: Stub, tmp_path: Path) -> None:
    """sglang-router: the worker is off the list at once, and its requests go on."""
    stub.workers, stub.metrics = (
        [worker(stub, load=2)],
        "vllm:num_requests_running 2.0\nvllm:num_requests_waiting 1.0\n",
    )
    run, said = bringup(stub, tmp_path, drain_s=0.3)
    drain(run, {"decode-0": stub.url})
    assert "draining decode-0 (3)" in said.lines
    assert said.lines[-1] == "requests under way are cut after 0 s: decode-0 (3)"
    stub.workers, stub.metrics, said.lines[:] = [worker(stub, load=2)], "sglang:num_running_reqs 0\n", []
    drain(run, {"decode-0": stub.url})
    assert said.lines == []


def test_unknown_is_not_idle(stub: Stub, tmp_path: Path) -> None:
    """It had requests, and nobody says whether it still has."""
    stub.workers = [worker(stub, load=2)]
    run, said = bringup(stub, tmp_path, drain_s=0.2)
    drain(run, {"decode-0": stub.url})
    assert said.lines == ["draining decode-0", "requests under way are cut after 0 s: decode-0"]


def test_an_idle_engine_costs_no_wait(stub: Stub, tmp_path: Path) -> None:
    stub.workers = [worker(stub)]
    run, said = bringup(stub, tmp_path)
    drain(run, {"decode-0": stub.url})
    assert (stub.workers, said.lines) == ([], [])


def test_a_router_that_keeps_no_list_or_refuses_is_said_and_stops_nothing(stub: Stub, tmp_path: Path) -> None:
    run, said = bringup(stub, tmp_path, drain_s=0)
    stub.workers = None
    drain(run, {"decode-0": stub.url})
    assert said.lines == ["the router cannot be told: requests to what is restarted fail meanwhile"]
    stub.workers, stub.status = [worker(stub)], 403
    drain(run, {"decode-0": stub.url})
    assert "the router does not let decode-0 go: " in said.lines[1]


def test_an_engine_is_put_back_with_its_bootstrap_port_and_waited_for(stub: Stub, tmp_path: Path) -> None:
    run, said = bringup(stub, tmp_path)
    enlist(run, stub.url, {"prefill-0": Enlisted("prefill", Backend("http://a:1", 8998))})
    assert stub.asked == ["POST prefill 8998"]
    assert said.lines == ["the router takes on prefill-0"]
    enlist(run, stub.url, {"prefill-0": Enlisted("prefill", Backend("http://a:1", 8998))})
    assert stub.asked == ["POST prefill 8998"], "it is on the list"


@pytest.mark.code("PD3022")
@pytest.mark.parametrize("status", [202, 400])
def test_a_router_that_takes_nobody_on_fails_the_phase(stub: Stub, tmp_path: Path, status: int) -> None:
    run, _ = bringup(stub, tmp_path)
    stub.takes, stub.status = False, status
    with pytest.raises(GateError, match="the router does not take its workers on") as caught:
        enlist(run, stub.url, {"decode-0": Enlisted("decode", Backend("http://a:1"))}, patience_s=0.3)
    assert caught.value.code == "PD3022"
    assert stub.asked == ["POST decode None"], "asked once"


def test_gauges_are_added_and_others_are_not(stub: Stub) -> None:
    assert under_way(stub.url) is None
    stub.metrics = '# HELP x\nsglang:num_running_reqs{tp="0"} 2\nsglang:num_queue_reqs 1.0\nother 7\n'
    assert under_way(stub.url) == 3
