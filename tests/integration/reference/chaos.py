"""Load on a fleet of two and two engines, behind the real router, while its parts are troubled.

Every answer is compared with the aggregate engine's. Trouble is two control connections reset a second; with `--all`
engines are frozen and killed as well, and their guards start them again.

python -m tests.integration.reference.chaos --seconds 60 --all
"""

import argparse
import contextlib
import itertools
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from pdctl.engines.base import Command, Instance
from pdctl.engines.http import Unreachable, post_json, request
from pdctl.engines.reference.adapter import ReferenceEngine
from pdctl.fleet import load_fleet
from pdctl.launch.state import FleetState
from pdctl.up import plan
from pdctl.up.runner import bring_up
from pdctl.up.status import UnitView, fleet_status
from pdctl.up.takedown import bring_down
from tests.integration.reference.cuttable import reset_one

NAME = "chaos"
FLEET = f"""\
schema: pdctl.fleet/v1
name: {NAME}
model: {{path: builtin:tiny-hybrid}}
engine: reference
transfer: {{backend: mooncake, protocol: tcp, options: {{bootstrap_s: 30}}}}
launcher: {{kind: local}}
prefill:
  - {{name: prefill-narrow, attn_tp: 1, page_size: 16}}
  - {{name: prefill-wide, attn_tp: 2, page_size: 16}}
decode:
  - {{name: decode-narrow, attn_tp: 1, page_size: 16}}
  - {{name: decode-wide, attn_tp: 2, page_size: 16}}
roles:
  aggregate: {{attn_tp: 1, page_size: 16}}
router: {{kind: smg}}
"""
CLIENTS = 12
NEW_TOKENS = 12
HANG_S = 90.0
"""Longer than any stage of a request may take."""
REFUSED_PAUSE_S = 0.5
CUTS_A_SECOND = 2
STEADY_S = 75.0
KILLS_IN_A_ROW = 4
"""A guard gives up on an engine that fails more often than this without having run for a minute."""
BACK_WITHIN_S = 60.0
LENT = ("scratch_free_slots", "staging_free_slots", "quarantined")


class Cuttable(ReferenceEngine):
    """The reference engine in a process that resets its connections when asked to."""

    def command(self, instance: Instance) -> Command:
        made = super().command(instance)
        ours = {"pdctl.engines.reference": "tests.integration.reference.cuttable"}
        argv = tuple(ours.get(word, word) for word in made.argv)
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]))
        return structs.replace(made, argv=argv, env={**made.env, "PYTHONPATH": path})


@dataclass
class Report:
    """What was asked and what came of it, and what was done meanwhile."""

    right: int = 0
    wrong: int = 0
    hung: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    trouble: Counter[str] = field(default_factory=Counter)
    beneath: Counter[str] = field(default_factory=Counter)
    """Requests that failed at a decode engine, by code: the router may try again elsewhere without a word."""
    left: list[str] = field(default_factory=list)
    """What did not heal."""
    seconds: float = 0.0

    @property
    def asked(self) -> int:
        return self.right + self.wrong + self.hung + self.refused.total()

    def faults(self, least_right: float) -> list[str]:
        """Empty if it held, with at least this share of requests right, at the engines too."""
        found = list(self.left)
        if self.wrong:
            found.append(f"{self.wrong} answers are not the aggregate engine's")
        if self.hung:
            found.append(f"{self.hung} requests were not answered in {HANG_S:.0f} s")
        if self.right < least_right * self.asked:
            found.append(f"{self.right} of {self.asked} right, of which {least_right:.0%} had to be")
        if self.beneath.total() > (1 - least_right) * self.asked:
            found.append(f"{self.beneath.total()} failed at decode engines, which the router hid: {dict(self.beneath)}")
        return found

    def __str__(self) -> str:
        return (
            f"asked {self.asked} in {self.seconds:.0f} s, right {self.right}, wrong {self.wrong}, hung {self.hung}, "
            f"refused {dict(self.refused)}; failed at decode {dict(self.beneath)}; trouble {dict(self.trouble)}"
        )


def prompts(count: int = 24) -> list[str]:
    """Of a few lengths, so that all ways of writing are used."""
    draw = random.Random(7)
    words = ["ka", "lo", "mi", "the", "cache", "moves", "ring", "page"]
    return [" ".join(draw.choice(words) for _ in range(draw.choice([3, 17, 60, 200]))) for _ in range(count)]


def ask(url: str, prompt: str) -> str:
    """The text that follows. Raises Unreachable."""
    body = {"model": "tiny-hybrid", "prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
    answer: Any = post_json(f"{url}/v1/completions", body, HANG_S)
    return str(answer["choices"][0]["text"])


class Load:
    """Clients that ask one prompt after another until told to stop, or until enough was asked."""

    def __init__(self, url: str, truth: dict[str, str], report: Report, limit: int | None) -> None:
        self._url, self._truth, self._report = url, truth, report
        self._left = itertools.count() if limit is None else iter(range(limit))
        self._lock = threading.Lock()
        self.stop = threading.Event()

    def run(self, seed: int) -> None:
        """One client."""
        draw = random.Random(seed)
        choices = list(self._truth)
        while not self.stop.is_set():
            with self._lock:
                if next(self._left, None) is None:
                    return
            prompt = draw.choice(choices)
            try:
                seen, why = ask(self._url, prompt), ""
            except Unreachable as error:
                seen, why = "", str(error)
            with self._lock:
                self._count(seen, why, self._truth[prompt])
            if why:
                self.stop.wait(REFUSED_PAUSE_S)

    def _count(self, seen: str, why: str, wanted: str) -> None:
        if not why:
            self._report.right += seen == wanted
            self._report.wrong += seen != wanted
        elif "no answer in time" in why:
            self._report.hung += 1
        else:
            said = re.search(r"PD\d{4}", why) or re.search(r'(?<="message":")[^"]*', why)  # the router drops codes
            self._report.refused[re.sub(r"\d{5,}", "…", said[0] if said else why)[:80]] += 1


class Trouble:
    """What is done to the engines of the pairs."""

    def __init__(self, report: Report, seed: int, *, everything: bool) -> None:
        self._report, self._draw, self._everything = report, random.Random(seed), everything
        self._kills: dict[str, tuple[int, float]] = {}
        self.stop = threading.Event()

    def run(self) -> None:
        """Until told to stop."""
        while not self.stop.wait(1 / CUTS_A_SECOND):
            units = engines()
            what = self._draw.choices(["cut", "freeze", "kill"], [0.9, 0.06, 0.04])[0] if self._everything else "cut"
            unit = self._draw.choice([unit for unit in units if what != "cut" or unit.role == "prefill"])
            if unit.pid is None or not getattr(self, f"_{what}")(unit.name, unit.pid):
                continue
            self._report.trouble[what] += 1

    def _cut(self, name: str, pid: int) -> bool:
        return reset_one(pid)

    def _freeze(self, name: str, pid: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._draw.uniform(1.0, 4.0))
            os.kill(pid, signal.SIGCONT)
        return True

    def _kill(self, name: str, pid: int) -> bool:
        row, last = self._kills.get(name, (0, 0.0))
        row = 0 if time.monotonic() - last > STEADY_S else row
        if row >= KILLS_IN_A_ROW:
            return False
        self._kills[name] = (row + 1, time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True


def engines() -> list[UnitView]:
    """Those of the pairs."""
    return [unit for unit in fleet_status(NAME).units if unit.role in ("prefill", "decode")]


def samples(metric: str, role: str = "") -> Iterator[tuple[str, float]]:
    """Name and labels of each sample of this metric, and its value, of all engines or those of a role."""
    for unit in engines():
        if role in ("", unit.role):
            _, text = request(f"http://127.0.0.1:{unit.port}/metrics")
            for line in text.decode().splitlines():
                if line.startswith(f"pdctl_transfer_{metric}{{"):
                    labels, _, value = line.rpartition(" ")
                    yield f"{unit.name} {labels}", float(value)


def lent() -> dict[str, float]:
    """What each rank has free, or keeps back: it must come back to where it was."""
    return {name: value for metric in LENT for name, value in samples(metric)}


def failed_at_decode() -> Counter[str]:
    """By code, since the engines started."""
    found: Counter[str] = Counter()
    for name, value in samples("failures_total", "decode"):
        found[re.findall(r"PD\d{4}", name)[0]] += int(value)
    return found


def heal(report: Report, url: str, truth: dict[str, str], before: dict[str, float]) -> None:
    """Once trouble is over: every engine is ready, every request right, and nothing that was lent is missing."""
    end = time.monotonic() + BACK_WITHIN_S
    while not fleet_status(NAME).ok:
        if time.monotonic() > end:
            report.left.append(f"not ready again: {[(unit.name, unit.state) for unit in fleet_status(NAME).units]}")
            return
        time.sleep(0.2)
    while time.monotonic() < end and not _all_right(url, truth, 8):
        time.sleep(0.5)
    if not _all_right(url, truth, 24):
        report.left.append("requests fail after the trouble is over")
    while (after := lent()) != before and time.monotonic() < end:
        time.sleep(0.5)
    changed = {name: value for name, value in after.items() if value != before.get(name)}
    report.left += [f"{name} is {value:.0f}, was {before.get(name)}" for name, value in changed.items()]


def _all_right(url: str, truth: dict[str, str], count: int) -> bool:
    """In turn: four of them reach every pair of a router that goes round."""
    try:
        return all(ask(url, prompt) == truth[prompt] for prompt in itertools.islice(itertools.cycle(truth), count))
    except Unreachable:
        return False


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[FleetState]:
    """Five engines and a router, up and proven."""
    path = folder / "fleet.yaml"
    path.write_text(FLEET)
    ordinary = plan.adapter
    plan.adapter = lambda name: Cuttable()  # type: ignore[attr-defined]
    try:
        yield bring_up(load_fleet(path))
    finally:
        plan.adapter = ordinary  # type: ignore[attr-defined]
        bring_down(NAME)


def chaos(folder: Path, seconds: float, requests: int | None = None, seed: int = 3, *, everything: bool) -> Report:
    """Trouble for so long, or for so many requests, and then none."""
    report = Report()
    with fleet(folder) as state:
        urls = {unit.role: unit.url for unit in state.units}
        with ThreadPoolExecutor(4) as pool:
            given = prompts()
            truth = dict(zip(given, pool.map(lambda prompt: ask(urls["aggregate"], prompt), given), strict=True))
        if not _all_right(urls["router"], truth, 8):
            report.left.append("requests fail before there is any trouble")
            return report
        before = lent()
        load = Load(urls["router"], truth, report, requests)
        trouble = Trouble(report, seed, everything=everything)
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            troubling = pool.submit(trouble.run)
            clients = [pool.submit(load.run, client) for client in range(CLIENTS)]
            while time.monotonic() - began < seconds and not all(client.done() for client in clients):
                time.sleep(0.1)
            load.stop.set()
            for client in clients:
                client.result()
            report.seconds = time.monotonic() - began
            trouble.stop.set()
            troubling.result()
        heal(report, urls["router"], truth, before)
        report.beneath = failed_at_decode()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; exit status 1 where something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long at most")
    parser.add_argument("--requests", type=int, help="how many at most")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--all", action="store_true", help="freeze and kill engines as well")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pdctl-chaos-") as folder:
        os.environ["XDG_STATE_HOME"] = folder
        report = chaos(Path(folder), given.seconds, given.requests, given.seed, everything=given.all)
    print(report)
    faults = report.faults(0.0 if given.all else 0.99)
    for fault in faults:
        print(f"fault: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
