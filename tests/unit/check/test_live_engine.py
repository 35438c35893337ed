"""`--live` against real engines: what they registered is what their fleet file derives, entry by entry."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl.engines import http
from tests.unit.check.test_live import FLEET

DEADLINE_S = 90.0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serve(role: str, port: int, log: Path) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "pdctl.engines.reference", "--role", role, "--port", str(port)]
    argv += ["--bootstrap-port", str(_free_port())] if role == "prefill" else []
    with log.open("wb") as output:
        return subprocess.Popen(argv, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.integration
def test_derived_and_live_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No drift (PD1026) and a pair that fits."""
    ports = {role: _free_port() for role in ("prefill", "decode")}
    logs = {role: tmp_path / f"{role}.log" for role in ports}
    engines = {role: _serve(role, port, logs[role]) for role, port in ports.items()}
    try:
        end = time.monotonic() + DEADLINE_S
        while not all(http.answers(f"http://127.0.0.1:{port}/health") for port in ports.values()):
            dead = [logs[role].read_text()[-2000:] for role, engine in engines.items() if engine.poll() is not None]
            assert not dead, dead
            assert time.monotonic() < end, "the engines did not come up"
            time.sleep(0.2)
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(FLEET.format(**ports))
        status = main(["check", str(fleet), "--live", "-o", "json"])
        report = json.loads(capsys.readouterr().out)
    finally:
        for engine in engines.values():
            engine.kill()
            engine.wait()
    assert (status, [finding["code"] for finding in report["findings"]]) == (0, ["PD2016"])
    assert [pair["verdict"] for pair in report["pairs"]] == ["fits"]
