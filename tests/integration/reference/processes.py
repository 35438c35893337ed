"""Engines and routers as real processes, on ports that were free."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago."""
    listeners = [socket.socket() for _ in range(count)]
    for listener in listeners:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@dataclass
class Unit:
    """A process with an HTTP port."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: dict[str, Any], timeout: float = 60) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=timeout)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=10)

    def metric(self, name: str) -> float:
        """One value of /metrics."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(name + " "))


@contextmanager
def unit(
    command: Sequence[str], port: int, path: str, log: Path, ready: str = "", timeout: float = 60
) -> Iterator[Unit]:
    """Run a command until the block ends; it is ready when `path` answers 200 with `ready` in it."""
    with log.open("wb") as output:
        process = subprocess.Popen(list(command), stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
    made = Unit(process, port, log)
    try:
        deadline = time.monotonic() + timeout
        while not _answers(made, path, ready):
            assert process.poll() is None, f"{command} ended:\n{log.read_text(errors='replace')[-3000:]}"
            assert time.monotonic() < deadline, f"{command} is not ready:\n{log.read_text(errors='replace')[-3000:]}"
            time.sleep(0.05)
        yield made
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@contextmanager
def engine(log: Path, *arguments: str) -> Iterator[Unit]:
    """A reference engine."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "pdctl.engines.reference", "--port", str(port), *arguments]
    with unit(command, port, "/health", log) as made:
        yield made


@contextmanager
def router(log: Path, module: Sequence[str], prefill: Unit, bootstrap: int, decode: Unit) -> Iterator[Unit]:
    """A real router before one pair."""
    port, metrics = free_ports(2)
    command = [sys.executable, "-m", *module, "--pd-disaggregation"]
    command += ["--prefill", prefill.url, str(bootstrap), "--decode", decode.url]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
    with unit(command, port, "/readiness", log, ready='"ready"') as made:
        yield made


def _answers(made: Unit, path: str, ready: str) -> bool:
    try:
        answer = made.get(path)
    except httpx.HTTPError:
        return False
    return answer.status_code == 200 and ready in answer.text
