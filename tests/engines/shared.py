"""Engines that several tests use: each is started when first asked for, and kept while there is room for it."""

import json
import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil

from pdctl.engines import adapter, http
from pdctl.engines.alike import Noise, compare, judge, noise_of
from pdctl.engines.answer import Answer, Prompt, complete
from pdctl.engines.base import Instance
from pdctl.engines.vllm.probe import FOR_PREFILL
from pdctl.errors import PdctlError
from tests.engines.clients import leave
from tests.engines.fleets import Fleet, by_hand, free_port

MOST = 6
"""Ranks that run at the same time: each is about 1.5 GB."""
TIMEOUT_S = 400.0
"""For one request: on two cores that eight engines share, a prompt of 16,000 tokens takes minutes."""
PURPOSES = {"sglang": ("http", "bootstrap"), "vllm": ("http", "side_channel")}


class Stand(NamedTuple):
    """A fleet file, and by pool what its engines find in their environment beyond it."""

    document: dict[str, Any]
    env: Mapping[str, Mapping[str, str]]


class Shared:
    """The engines of one fleet file, by the names of its pools. Started by hand: nobody restarts what a test kills."""

    _all: ClassVar["list[Shared]"] = []

    def __init__(self, folder: Path, stand: Stand, most: int = MOST, aggregate: str = "aggregate") -> None:
        document, self._env = stand
        self.folder, self.fleet, self.most = folder, Fleet(folder, document), most
        self.engine: str = document["engine"]
        self._aggregate = aggregate
        self._running: dict[str, tuple[Instance, ExitStack, subprocess.Popen[bytes]]] = {}
        self._answers: dict[Prompt, Answer] = {}
        self._noise: Noise | None = None
        self._all.append(self)

    def __enter__(self) -> "Shared":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._all.remove(self)

    @classmethod
    def stop_all(cls) -> None:
        """End all engines of all fleet files."""
        for shared in cls._all:
            shared.stop()

    def ready(self, *names: str) -> list[Instance]:
        """These engines, serving. Those of other fleet files make room, then those asked for longest ago."""
        for other in self._all:
            if other is not self:
                other.stop()
        missing = [name for name in names if name not in self._running]
        made = {name: self._made(name) for name in missing}
        wanted = sum(ranks(instance) for instance in made.values())
        for name in [name for name in self._running if name not in names]:
            if wanted + sum(ranks(kept[0]) for kept in self._running.values()) > self.most:
                self.stop(name)
        if made:  # once, before several threads do
            adapter(self.engine).ship_core([instance.pool for instance in made.values()])
        with ThreadPoolExecutor(len(missing) or 1) as pool:
            list(pool.map(self._start, made.values()))
        for name in names:  # last asked for, last to make room
            self._running[name] = self._running.pop(name)
        return [self._running[name][0] for name in names]

    def stop(self, *names: str) -> None:
        """End these, or all, with all their processes, at once."""
        for name in names or tuple(self._running):
            self._running.pop(name)[1].close()

    def processes(self, name: str) -> list[psutil.Process]:
        """An engine's processes, the first one first."""
        first = psutil.Process(self._running[name][2].pid)
        return [first, *first.children(recursive=True)]

    def signal(self, name: str, number: signal.Signals) -> None:
        """To all processes of an engine at once: it leads a group."""
        os.killpg(self._running[name][2].pid, number)

    def log(self, name: str) -> str:
        """What an engine has written so far."""
        return (self.folder / f"{name}-0.log").read_text(errors="replace")

    def _made(self, name: str) -> Instance:
        return self.fleet.instance(f"{name}-0", **{purpose: free_port() for purpose in PURPOSES[self.engine]})

    def _start(self, instance: Instance) -> None:
        stack = ExitStack()
        name = instance.pool.name
        processes = stack.enter_context(by_hand(instance, logs=self.folder, env=self._env.get(name)))
        self._running[name] = instance, stack, processes[instance.name]

    # ---- answers ----

    def expected(self, prompts: Iterable[Prompt], tokens: int) -> list[Answer]:
        """The aggregate engine's answers, each asked for once."""
        asked = list(prompts)
        missing = [prompt for prompt in asked if prompt not in self._answers]
        if missing:
            (engine,) = self.ready(self._aggregate)
            for prompt in missing:
                self._answers[prompt] = self.alone(engine, prompt, tokens)
        return [self._answers[prompt] for prompt in asked]

    def alone(self, engine: Instance, prompt: Prompt, tokens: int) -> Answer:
        """A greedy answer of an engine that serves by itself."""
        return complete(engine.url, engine.served_name, prompt, tokens, TIMEOUT_S)

    def noise(self, prompts: Sequence[Prompt], tokens: int) -> Noise:
        """How far the aggregate engine is from itself."""
        if self._noise is None:
            expected = self.expected(prompts, tokens)
            (engine,) = self.ready(self._aggregate)
            self._noise = noise_of(expected, lambda prompt, count: self.alone(engine, prompt, count))
        return self._noise

    def over(
        self, prefill: str, decode: str, prompts: Sequence[Prompt], tokens: int, at_once: int
    ) -> list[Answer | str]:
        """The answers over this very pair, so many requests at the same time; text where one failed."""
        sides = self.ready(prefill, decode)

        def ask(prompt: Prompt) -> Answer | str:
            try:
                return adapter(self.engine).probe(sides[0], sides[1], prompt, tokens, TIMEOUT_S).answer
            except PdctlError as failure:
                return str(failure)

        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(ask, prompts))

    def unlike(
        self, pair: tuple[str, str], prompts: Sequence[Prompt], noise: Noise, tokens: int = 24, at_once: int = 8
    ) -> list[str]:
        """Prompts whose answer over a pair is not the aggregate engine's, each with what is the matter."""
        wrong = []
        expected = self.expected(prompts, tokens)
        for prompt, ours, theirs in zip(prompts, self.over(*pair, prompts, tokens, at_once), expected, strict=True):
            said = ours if isinstance(ours, str) else differs(ours, theirs, noise)
            if said:
                wrong.append(f"{len(prompt)} tokens from {prompt[:4]}: {said[:600]}")
        return wrong

    def leave(self, prefill: str, decode: str, prompt: Prompt, after_s: float) -> None:
        """A request over a pair whose client goes away after that time."""
        sides = self.ready(prefill, decode)
        body = {"model": sides[1].served_name, "prompt": list(prompt), "max_tokens": 64, "ignore_eos": True}
        urls = [side.url for side in sides]
        if self.engine == "sglang":
            where = {"bootstrap_host": sides[0].host, "bootstrap_port": sides[0].ports["bootstrap"]}
            return leave(urls, body | where | {"bootstrap_room": secrets.randbits(47)}, after_s)
        began = time.monotonic()
        asked = body | {"max_tokens": 1, "kv_transfer_params": dict(FOR_PREFILL)}
        try:
            first = http.post_json(f"{urls[0]}/v1/completions", asked, after_s)
        except http.Unreachable:  # gone before prefill was done
            return None
        given = body | {"kv_transfer_params": first["kv_transfer_params"]}
        return leave(urls[1:], given, max(0.0, after_s - (time.monotonic() - began)))

    # ---- what engines say of themselves ----

    def way(self, prefill: str, decode: str) -> str:
        """Which way a decode engine says that it takes for a prefill engine, the same for all its ranks; "" for none.

        A decode engine knows its partner by where it registers: SGLang's bootstrap server, the registry of the core.
        """
        source, sink = self.ready(prefill, decode)
        ports = {str(port) for port in (*source.ports.values(), registry_of(source)) if port}
        found = {way["way"] for way in ways(sink) if way["peer"].rpartition(":")[2] in ports}
        assert len(found) <= 1, ways(sink)
        return found.pop() if found else ""

    def busy(self, name: str) -> dict[str, float]:
        """What an engine says that it holds or has before it, by its own counters. Zeros when it is at rest."""
        (engine,) = self.ready(name)
        return busy_vllm(engine) if self.engine == "vllm" else busy_sglang(engine)


def busy_sglang(engine: Instance) -> dict[str, float]:
    """Pages in use, cached ones not counted, and the lengths of all queues."""
    found: dict[str, float] = {}
    for load in http.get_json(f"{engine.url}/v1/loads?include=all")["loads"]:
        queues = load["disaggregation"] or {}
        counts = {key: value for key, value in queues.items() if key.endswith("_queue_reqs")}
        for key in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens"):
            counts[key] = load[key]
        for key, value in counts.items():
            found[key] = found.get(key, 0) + value
    return found


def busy_vllm(engine: Instance) -> dict[str, float]:
    """The share of blocks in use, and the lengths of both queues."""
    status, text = http.request(f"{engine.url}/metrics")
    assert status == 200, text
    names = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting")
    found = re.findall(rf"^vllm:({'|'.join(names)})\{{[^}}]*\}} (\S+)$", text.decode(), re.MULTILINE)
    return {name: sum(float(value) for key, value in found if key == name) for name in names}


def differs(ours: Answer, theirs: Answer, noise: Noise) -> str:
    """Nothing where two answers are the same as far as noise allows: without any, their tokens must be equal."""
    if not noise.largest:
        return "" if ours.tokens == theirs.tokens else judge(compare(ours, theirs), noise).words
    verdict = judge(compare(ours, theirs), noise)
    return "" if verdict.kind in ("equal", "noise") else verdict.words


def ranks(instance: Instance) -> int:
    """Processes that hold a model."""
    return instance.pool.tp * instance.pool.pp


def ways(engine: Instance) -> list[dict[str, Any]]:
    """What a running engine says of its pairs, of all its ranks."""
    if (engine.pool.engine or engine.fleet.engine) == "vllm":
        return list(http.get_json(f"{engine.url}/pdctl/ways"))
    states = http.get_json(f"{engine.url}/server_info")["internal_states"]
    return [way for state in states for way in state.get("pdctl", {}).get("ways", [])]


def registry_of(engine: Instance) -> int | None:
    """The port of the core's registry, where the engine's command line names one."""
    named = re.search(r'"registry_port":(\d+)', " ".join(engine.pool.args))
    return int(named[1]) if named else None


def as_json(value: Any) -> str:
    """One word of a command line."""
    return json.dumps(value, separators=(",", ":"))
