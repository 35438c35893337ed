"""Fleets of real engines for tests: written from the shipped examples, brought up with the command line, taken down."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from pdctl.engines import adapter
from pdctl.engines.alike import Noise, noise_of
from pdctl.engines.answer import Answer, Prompt, complete
from pdctl.engines.base import Instance
from pdctl.engines.http import Unreachable, answers, get_json, request
from pdctl.fleet import load_fleet

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
TOKENS = 16
PORTS = {"MC_MIN_RPC_PORT": "17100", "MC_MAX_RPC_PORT": "17900"}
"""Mooncake takes any free port of 15000 to 17000, of which other tests of this machine leave peers that still call."""


class Fleet:
    """One fleet file in a folder of its own, with its own state, and the commands that a person would type."""

    def __init__(self, folder: Path, document: Mapping[str, Any]) -> None:
        self.path = folder / f"{document['name']}.yaml"
        self.path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        self.document = document
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state"), "NO_COLOR": "1", **PORTS}

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

    def observe(self) -> dict[str, Any]:
        """`status -o json`."""
        return dict(json.loads(self.run("status", str(self.path), "-o", "json", status=None).stdout))

    def status(self) -> dict[str, Any]:
        """The same, by the units' names."""
        return {unit["name"]: unit for unit in self.observe()["units"]}

    @staticmethod
    def now() -> float:
        """The clock by which `status` says when it looked."""
        return time.time()

    def check(self, *words: str) -> dict[str, Any]:
        """`check -o json`, whatever its verdict."""
        done = self.run("check", str(self.path), *words, "-o", "json", status=None)
        assert done.returncode in (0, 3), done.stderr
        return dict(json.loads(done.stdout))

    def layout(self, role: str) -> Path:
        """The derived manifest of a role's only pool, in a file."""
        file = self.path.with_name(f"{self.path.stem}-{role}.json")
        file.write_text(self.run("layout", str(self.path), "--role", role, "-o", "json").stdout)
        return file

    def log(self, unit: str) -> str:
        """A unit's whole log."""
        return self.run("logs", str(self.path), unit, "-n", "100000", status=None).stdout

    def events(self, unit: str) -> list[dict[str, Any]]:
        """What the plugin in an engine recorded of its transfers."""
        url = f"http://127.0.0.1:{self.status()[unit]['port']}"
        if self.document["engine"] == "sglang":
            return list(get_json(f"{url}/server_info")["internal_states"][0]["pdctl"]["events"])
        return list(get_json(f"{url}/pdctl/events"))

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

    @property
    def model(self) -> str:
        """Its name in requests."""
        return str(self.document["model"]["path"].partition(":")[2])

    def url(self, unit: str) -> str:
        """Where a unit listens."""
        return f"http://127.0.0.1:{self.status()[unit]['port']}"

    def complete(self, unit: str, prompt: str = PROMPT, tokens: int = TOKENS) -> tuple[int, str]:
        """A greedy completion from a unit's HTTP port (the router's, usually): status and text, or the error's body."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        try:
            status, content = request(f"{self.url(unit)}/v1/completions", body=body, deadline_s=180)
        except Unreachable as failure:
            return 0, str(failure)
        if status != 200:
            return status, content.decode("utf-8", "replace")
        return status, json.loads(content)["choices"][0]["text"]

    def answer(self, unit: str, prompt: Prompt = PROMPT, tokens: int = TOKENS) -> Answer:
        """The same with tokens and logprobs, for comparisons. Raises Unreachable."""
        return complete(self.url(unit), self.model, prompt, tokens, 180)

    def noise(self, answers: Iterable[Answer]) -> Noise:
        """How far the aggregate engine is from itself, over answers that it gave."""
        return noise_of(answers, partial(self.answer, "aggregate-0"))


def example(shipped: str, /, **changes: Any) -> dict[str, Any]:
    """A shipped example with some of its sections changed: mappings are merged, anything else replaced."""
    document = yaml.safe_load((EXAMPLES / f"{shipped}.yaml").read_text())
    document["router"].pop("port")  # a free one, so that tests and people do not meet
    for key, value in changes.items():
        document[key] = {**document.get(key, {}), **value} if isinstance(value, dict) else value
    return dict(document)


@contextmanager
def by_hand(
    *instances: Instance, logs: Path, env: Mapping[str, str] | None = None
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Engines as an operator would start them, with the adapter's command lines; ended with all their processes.

    Their first processes by name, each the leader of a group. `env` comes on top of all others.

    Each writes `NAME.log` in that folder; a second start of one goes on in it.
    """
    processes = []
    try:
        for instance in instances:
            engine = adapter(instance.pool.engine or instance.fleet.engine)
            engine.ship_core([instance.pool])
            engine.needs(instance.fleet, instance.pool)  # writes a built-in model
            made = engine.command(instance)
            with (logs / f"{instance.name}.log").open("a") as output:
                processes.append(
                    subprocess.Popen(
                        made.argv,
                        env=os.environ | dict(made.env) | dict(env or {}),
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        for instance, process in zip(instances, processes, strict=True):
            path = adapter(instance.pool.engine or instance.fleet.engine).readiness.path
            until(f"{instance.name} serves", partial(_serves_or_died, instance, path, process))
        yield {instance.name: process for instance, process in zip(instances, processes, strict=True)}
    finally:
        for process in processes:
            with suppress(ProcessLookupError):  # a test has killed it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _serves_or_died(instance: Instance, path: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"{instance.name} ended with {process.returncode} before it served"
    return answers(instance.url + path)


def until(what: str, condition: Callable[[], bool], timeout: float = 600) -> float:
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
