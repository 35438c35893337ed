"""The client: whatever a server does, an answer or a fault in one line, in time, and in little memory."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pdctl.engines import http
from tests.hostile import ALIVE, MODES, hostile
from tests.unit.engines.serving import Handler, serving

DEADLINE_S = 0.5
SLACK_S = 5.0
"""A loaded machine is slow; a call without a deadline never ends."""
USELESS = tuple(mode for mode in MODES if mode != "wide")
"""The modes whose answer is no document at all; `wide` is one, of an unlikely size."""
PEAK_KIB = 200 * 1024


class Echo(Handler):
    """Says what it was asked."""

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        said = {"method": self.command, "path": self.path, "headers": dict(self.headers), "body": body}
        self.answer(cast(Any, self.server).status, json.dumps(said).encode())

    def do_DELETE(self) -> None:
        self.do_POST()


@pytest.fixture
def echo() -> Iterator[str]:
    with serving(Echo, status=200) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


def test_a_document_comes_back(echo: str) -> None:
    said = http.get_json(f"{echo}/a?b=c", 10)
    assert (said["method"], said["path"], said["body"]) == ("GET", "/a?b=c", "")
    assert said["headers"]["Accept-Encoding"] == "identity"
    assert "Authorization" not in said["headers"]
    said = http.post_json(f"{echo}/a", {"x": [1]}, 10, key="k3y")
    assert (said["method"], said["body"], said["headers"]["Authorization"]) == ("POST", '{"x": [1]}', "Bearer k3y")
    assert json.loads(http.request(f"{echo}/w", method="DELETE")[1])["method"] == "DELETE"


def test_the_environment_changes_nothing(echo: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert "Authorization" not in http.get_json(echo)["headers"]


def test_a_refused_request_says_its_status() -> None:
    with serving(Echo, status=403) as server, pytest.raises(http.Rejected, match=": HTTP 403: ") as caught:
        http.get_json(f"http://127.0.0.1:{server.server_address[1]}/a")
    assert caught.value.status == 403


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://127.0.0.1:1/x", "connection refused"),
        ("ftp://127.0.0.1/x", "neither http nor https"),
        ("http://", "no scheme"),
        ("http://nosuch.invalid/", "not known"),
    ],
)
def test_nobody_there(url: str, says: str) -> None:
    with pytest.raises(http.Unreachable, match=says):
        http.request(url, deadline_s=5)


def test_a_key_that_no_header_carries_is_not_shown(echo: str) -> None:
    with pytest.raises(http.Unreachable) as caught:
        http.get_json(echo, key="hunter\n2")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("mode", USELESS)
def test_harm_costs_one_answer(mode: str) -> None:
    with hostile(mode) as port:
        began = time.monotonic()
        with pytest.raises(http.Unreachable) as caught:
            http.post_json(f"http://127.0.0.1:{port}/v1/completions", {"prompt": "x" * 100_000}, DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S + SLACK_S
    said = str(caught.value)
    assert said.isprintable()
    assert len(said) < 400


@pytest.mark.parametrize("mode", MODES)
def test_whether_it_answers_needs_no_body(mode: str) -> None:
    with hostile(mode) as port:
        began = time.monotonic()
        deadline_s = 10.0 if mode in ALIVE else DEADLINE_S
        assert http.answers(f"http://127.0.0.1:{port}/health", deadline_s) == (mode in ALIVE)
        assert time.monotonic() - began < deadline_s + SLACK_S


def test_one_who_never_reads_is_not_waited_for() -> None:
    """Sending has the deadline too: nobody takes this body."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(http.Unreachable, match="no answer in time"):
            http.post_json(f"http://127.0.0.1:{server.getsockname()[1]}/", "x" * 20_000_000, DEADLINE_S)
        assert time.monotonic() - began < DEADLINE_S + SLACK_S


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    real, over = socket.getaddrinfo, threading.Event()

    def hangs(host: Any, *args: Any, **flags: Any) -> Any:
        if not flags.get("flags"):
            over.wait()
        return real(host, *args, **flags)

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    try:
        with pytest.raises(http.Unreachable, match="no answer in time"):
            http.get_json("http://somewhere.invalid/", DEADLINE_S)
    finally:
        over.set()


def test_a_handshake_that_drips_is_not_waited_for() -> None:
    with hostile("drip") as port, pytest.raises(http.Unreachable):
        http.get_json(f"https://127.0.0.1:{port}/", DEADLINE_S)


_TABLE = """\
import json, sys
from pdctl.engines import http
from tests.hostile import peak_kib
for mode, port in json.loads(sys.argv[1]).items():
    try:
        http.post_json(f"http://127.0.0.1:{port}/v1/completions", {}, 1.0)
    except http.Unreachable:
        pass
    print(mode, peak_kib())
"""


def test_harm_costs_little_memory(hostiles: dict[str, int]) -> None:
    """One process asks them all; its peak is the worst of them."""
    done = subprocess.run(
        [sys.executable, "-c", _TABLE, json.dumps(hostiles)], capture_output=True, text=True, check=True, timeout=100
    )
    peaks = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert peaks.keys() == hostiles.keys()
    assert max(peaks.values()) < PEAK_KIB, peaks


def test_health_that_takes_a_second_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's comes a second after it sent itself a request."""
    given: list[float] = []

    def request(url: str, *, key: str | None, deadline_s: float, limit_bytes: int) -> tuple[int, bytes]:
        given.append(deadline_s)
        return 200, b""

    monkeypatch.setattr(http, "request", request)
    assert http.answers("http://127.0.0.1:1/health")
    assert given[0] > 1.5
