"""Fleets of real engines for tests: written from the shipped examples, brought up with the command line, taken down."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pdctl.engines.base import Instance
from pdctl.engines.http import Unreachable, get_json, request
from pdctl.fleet import load_fleet

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
TOKENS = 16


class Fleet:
    """One fleet file in a folder of its own, with its own state, and the commands that a person would type."""

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        self.path = folder / f"{document['name']}.yaml"
        self.path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        self.document = document
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1"}

    def run(self, *words: str, timeout: float = 600, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        """`pdctl WORDS`; fails the test on another exit status than the one expected (None: any)."""
        done = subprocess.run(
            [sys.executable, "-m", "pdctl", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert status is None or done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def up(self, *words: str) -> str:
        """Bring the fleet up; what it printed."""
        done = self.run("up", str(self.path), *words)
        return done.stdout + done.stderr

    def down(self) -> None:
        """Take it down; fine if it is not up."""
        self.run("down", str(self.path), status=None)

    def status(self) -> dict[str, Any]:
        """`status -o json`, by the units' names."""
        done = self.run("status", str(self.path), "-o", "json", status=None)
        return {unit["name"]: unit for unit in json.loads(done.stdout)["units"]}

    def check(self, *words: str) -> dict[str, Any]:
        """`check -o json`, whatever its verdict."""
        done = self.run("check", str(self.path), *words, "-o", "json", status=None)
        assert done.returncode in (0, 3), done.stderr
        return dict(json.loads(done.stdout))

    def log(self, unit: str) -> str:
        """A unit's whole log."""
        return self.run("logs", str(self.path), unit, "-n", "100000", status=None).stdout

    def instance(self, name: str, **ports: int) -> Instance:
        """A unit as adapters know it; a running SGLang prefill engine says itself where its bootstrap server is."""
        loaded = load_fleet(self.path)
        pool = next(pool for pool in loaded.pools() if name in pool.members)
        if not ports:
            ports = {"http": self.status()[name]["port"]}
            if pool.role == "prefill" and (pool.engine or loaded.fleet.engine) == "sglang":
                info = get_json(f"http://127.0.0.1:{ports['http']}/server_info")
                ports["bootstrap"] = info["disaggregation_bootstrap_port"]
        return Instance(name, pool, loaded.fleet, loaded.model_path, "127.0.0.1", ports)

    def complete(self, unit: str, prompt: str = PROMPT, timeout: float = 60) -> tuple[int, str]:
        """A greedy completion from a unit's HTTP port (the router's, usually): status and text, or the error's body."""
        body = {
            "model": self.document["model"]["path"].partition(":")[2],
            "prompt": prompt,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        url = f"http://127.0.0.1:{self.status()[unit]['port']}/v1/completions"
        try:
            status, content = request(url, body=body, timeout_s=timeout)
        except Unreachable as failure:
            return 0, str(failure)
        if status != 200:
            return status, content.decode("utf-8", "replace")
        return status, json.loads(content)["choices"][0]["text"]


def example(shipped: str, /, **changes: Any) -> dict[str, Any]:
    """A shipped example with some of its sections changed: mappings are merged, anything else replaced."""
    document = yaml.safe_load((EXAMPLES / f"{shipped}.yaml").read_text())
    document["router"].pop("port")  # a free one, so that tests and people do not meet
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return dict(document)


def until(what: str, condition: Callable[[], bool], timeout: float = 240) -> float:
    """Wait for a condition; the seconds it took. Fails the test, saying what was waited for."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout, f"after {timeout:.0f} s still not: {what}"
        time.sleep(0.5)
    return time.monotonic() - start


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
