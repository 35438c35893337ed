"""What a request must pass before the engine looks at it."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from pdctl.engines.reference.server.app import Api
from pdctl.engines.reference.server.door import MAX_BODY, Door


class Scheduler:
    """Stands in for the engine, which no request here may reach."""

    def __init__(self) -> None:
        self.aborted: list[str] = []
        self.alive = True

    def abort(self, rid: str, why: str) -> None:
        self.aborted.append(rid)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The routes over an engine of which only `abort` is real."""
    one = Api.__new__(Api)
    scheduler = Scheduler()
    one._runner = cast(Any, type("R", (), {"scheduler": scheduler}))
    one._limits = cast(Any, type("L", (), {"needs_bootstrap": True, "vocab": 258}))
    one._name = "tiny"
    return one


@pytest.mark.code("PD3050")
@pytest.mark.parametrize("path", ["/abort_request", "/generate", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("body", [b"[]", b'"x"', b"nul", b"\xff", b"[" * 100_000, b'{"rid": 3}', b'{"rid": {}}'])
def test_odd_bodies_are_answered_with_400(api: Any, path: str, body: bytes) -> None:
    client = TestClient(api.app({}), raise_server_exceptions=False)
    answer = client.post(path, content=body)
    assert (answer.status_code, answer.json()["error"]["code"][:3]) == (400, "PD3"), answer.text


def test_an_abort_names_its_request_or_none(api: Any) -> None:
    client = TestClient(api.app({}))
    assert client.post("/abort_request", content=b'{"rid": "r1", "abort_all": false}').status_code == 200
    assert client.post("/abort_request").status_code == 200
    assert api._runner.scheduler.aborted == ["r1", ""]


@pytest.mark.code("PD3050")
@pytest.mark.parametrize("after", ["x", "-1", "9" * 5000])
def test_a_serial_number_is_a_number(api: Any, after: str) -> None:
    client = TestClient(api.app({}), raise_server_exceptions=False)
    assert client.get("/pdctl/events", params={"after": after}).status_code == 400


@pytest.mark.code("PD3058")
@pytest.mark.parametrize("known", [True, False])
def test_a_long_body_is_not_read_to_its_end(api: Any, known: bool) -> None:
    read = 0

    def body() -> Iterator[bytes]:
        nonlocal read
        for _ in range(64):
            read += 1 << 20
            yield b" " * (1 << 20)

    client = TestClient(api.app({}), raise_server_exceptions=False)
    headers = {"Content-Length": str(64 << 20)} if known else {}
    answer = client.post("/generate", content=body(), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "PD3058"
    assert MAX_BODY < 64 << 20


@pytest.mark.code("PD3057")
@pytest.mark.parametrize("header", [None, "hunter2", "Bearer hunter3", "Bearer ", "Basic hunter2", "Bearer hunter22"])
def test_without_the_key_nobody_is_served(header: str | None) -> None:
    async def served(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.path)

    routes = [Route(path, served) for path in ("/health", "/health_generate", "/metrics", "/generate", "/server_info")]
    client = TestClient(cast(Any, Door(Starlette(routes=routes), "hunter2")))
    headers = {"Authorization": header} if header else {}
    answers = {
        path: client.get(path, headers=headers).status_code for path in ("/generate", "/server_info", "/nothing")
    }
    assert set(answers.values()) == {401}
    assert [client.get(path).status_code for path in ("/health", "/health_generate", "/metrics")] == [200] * 3
    assert client.get("/generate", headers={"Authorization": "Bearer hunter2"}).status_code == 200
