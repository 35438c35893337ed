"""`--live`, against a real HTTP server that stands for an engine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.cli.app import main
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import encode_manifest

FLEET = """\
schema: pdctl.fleet/v1
name: live
model: {{path: builtin:tiny-hybrid}}
engine: reference
transfer: {{backend: mooncake, protocol: tcp}}
prefill: {{page_size: 16, ports: {{http: {prefill}}}}}
decode: {{page_size: 16, ports: {{http: {decode}}}}}
"""


@contextmanager
def engine(body: bytes, status: int = 200) -> Iterator[int]:
    """Serves one answer on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/pdctl/layout"
            self.send_response(status if known else 404)
            self.end_headers()
            self.wfile.write(body if known else b"")

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def derived(tmp_path: Path) -> dict[str, Manifest]:
    """What the fleet file derives, by role."""
    from pdctl.check.fleets import derive_pool
    from pdctl.fleet import load_fleet

    path = tmp_path / "derive.yaml"
    path.write_text(FLEET.format(prefill=1, decode=2))
    loaded = load_fleet(path)
    found = {pool.role: derive_pool(loaded, pool).manifest for pool in loaded.pools()}
    return {role: msgspec.structs.replace(manifest, origin="live") for role, manifest in found.items()}


def _check(tmp_path: Path, capsys: pytest.CaptureFixture[str], prefill: int, decode: int) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(prefill=prefill, decode=decode))
    status = main(["check", str(path), "--live", "-o", "json"])
    report = json.loads(capsys.readouterr().out)
    return status, report | {"findings": [one for one in report["findings"] if one["code"] != "PD2016"]}


def test_what_runs_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str], derived: dict[str, Manifest]) -> None:
    """Both sides answer as derived: they fit."""
    with engine(encode_manifest(derived["prefill"])) as p, engine(encode_manifest(derived["decode"])) as d:
        status, report = _check(tmp_path, capsys, p, d)
    assert (status, [pair["verdict"] for pair in report["pairs"]]) == (0, ["fits"])


@pytest.mark.code("PD1026", "PD1001")
def test_a_running_engine_that_is_not_what_the_file_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], derived: dict[str, Manifest]
) -> None:
    """It is judged by what runs, and the drift from the file is shown."""
    other = msgspec.structs.replace(derived["decode"], page_size=32)
    with engine(encode_manifest(derived["prefill"])) as p, engine(encode_manifest(other)) as d:
        status, report = _check(tmp_path, capsys, p, d)
        place = f"http://127.0.0.1:{d}"
    assert status == 3
    found = {finding["code"]: finding for finding in report["findings"]}
    assert set(found) == {"PD1001", "PD1026"}
    assert "page_size: 16 derived, 32 running" in found["PD1026"]["message"]
    assert found["PD1001"]["evidence"][1] == {"source": place, "text": "page_size: 32"}


@pytest.mark.code("PD1025")
@pytest.mark.parametrize(("body", "status"), [(b"not found", 404), (b"{}", 200), (b"<html>", 200), (b"", 200)])
def test_a_side_that_cannot_be_read_is_not_a_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], derived: dict[str, Manifest], body: bytes, status: int
) -> None:
    """The pair is unknown, the exit status 3, and the finding says which engine and why."""
    with engine(encode_manifest(derived["prefill"])) as p, engine(body, status) as d:
        exit_status, report = _check(tmp_path, capsys, p, d)
    assert exit_status == 3
    assert [pair["verdict"] for pair in report["pairs"]] == ["unknown"]
    assert [(f["code"], f["subject"]) for f in report["findings"]] == [("PD1025", "decode-0")]


@pytest.mark.code("PD1025")
def test_no_side_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both engines down: two findings, one a culprit."""
    status, report = _check(tmp_path, capsys, 1, 2)
    assert (status, report["ok"]) == (3, False)
    assert [finding["subject"] for finding in report["findings"]] == ["prefill-0", "decode-0"]


@pytest.mark.code("PD1025")
def test_an_engine_of_the_other_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], derived: dict[str, Manifest]
) -> None:
    """A decode engine behind the prefill's port is a mix-up, not a layout."""
    with engine(encode_manifest(derived["decode"])) as p, engine(encode_manifest(derived["decode"])) as d:
        _, report = _check(tmp_path, capsys, p, d)
    assert "reports the layout of a decode engine" in report["findings"][0]["message"]
