"""What holds for a pair of any real engine beside an aggregate one, written once: `class TestPair(PairTests)`.

The module that says so has a fixture `pair`: a fleet that is up, of prefill-0, decode-0, aggregate-0 and a router.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pdctl.engines.alike import NONE, ROUNDING, compare, judge
from pdctl.engines.answer import Answer
from pdctl.engines.http import Unreachable
from pdctl.routers import ROUTERS
from tests.engines.fleets import PROMPT, TOKENS, Fleet, until

PROMPTS = ("A", PROMPT, PROMPT * 3, "What is the capital of France?", "1 2 3 4 5 6 7 8 9 10 11")
SEEN_WITHIN_S = 5.0


def unlike(fleet: Fleet, tokens: int = TOKENS, exact: bool = False) -> list[str]:
    """Prompts to which the router's answer is not the aggregate engine's, within that engine's own noise.

    Exact: none is allowed, as in float32.
    """
    expected = {prompt: fleet.answer("aggregate-0", prompt, tokens) for prompt in PROMPTS}
    noise = NONE if exact else fleet.noise(expected.values())
    wrong = []
    for prompt, theirs in expected.items():
        verdict = judge(compare(fleet.answer("router", prompt, tokens), theirs), noise)
        if verdict.kind not in ("equal", "noise"):
            wrong.append(f"{prompt[:20]}… of {len(prompt)}: {verdict.words}")
    return wrong


def serves(fleet: Fleet, expected: Answer) -> bool:
    """Whether the router's answer is this one, as far as rounding allows."""
    try:
        return judge(compare(fleet.answer("router"), expected), ROUNDING).kind in ("equal", "noise")
    except Unreachable:
        return False


def drift(report: dict[str, Any]) -> list[Any]:
    """Engines that could not be read (PD1025), and entries that are not the derived ones (PD1026)."""
    return [finding for finding in report["findings"] if finding["code"] in ("PD1025", "PD1026")]


def external(fleet: Fleet) -> dict[str, Any]:
    """The document of a fleet that runs, described by its URLs."""
    document = {**fleet.document, "launcher": {"kind": "external"}}
    state = json.loads(
        (Path(fleet.environment["XDG_STATE_HOME"]) / "pdctl" / document["name"] / "fleet.json").read_text()
    )
    ports = {unit["name"]: unit["ports"] for unit in state["units"]}

    def at(unit: str) -> dict[str, Any]:
        known = {name: port for name, port in ports[unit].items() if name in ("bootstrap", "side_channel")}
        return {"url": f"http://127.0.0.1:{ports[unit]['http']}", **known}

    pools = {role: {**document[role], "urls": [at(f"{role}-0")]} for role in ("prefill", "decode")}
    router = {"kind": document["router"]["kind"], "url": at("router")["url"]}
    return {**document, **pools, "roles": {}, "router": router}


def written(fleet: Fleet) -> list[dict[str, Any]]:
    """Events of transfers on both sides: SGLang's and Mooncake's prefill writes, NIXL's decode reads."""
    return [e for unit in ("prefill-0", "decode-0") for e in fleet.events(unit) if e["what"] == "written"]


class PairTests:
    """Run in this order; the last ones kill what the first ones used, and wait until it is back."""

    def test_completions_through_the_router_are_the_aggregate_engines(self, pair: Fleet) -> None:
        assert unlike(pair) == []

    def test_live_layouts_are_read_and_are_the_derived_ones(self, pair: Fleet) -> None:
        report = pair.check("--live")
        assert report["ok"], report
        assert drift(report) == []

    def test_seen_from_outside_by_its_urls_it_is_the_same_fleet(self, pair: Fleet, tmp_path: Path) -> None:
        """As one that somebody else started: nothing is known of it but what its engines and its router answer."""
        outside = Fleet(tmp_path, external(pair))
        found = outside.observe()
        assert found["ok"], found
        said = {unit["name"]: unit["answers"] for unit in found["units"]}
        assert [said[name]["role"] for name in ("prefill-0", "decode-0")] == ["prefill", "decode"]
        keyed = ROUTERS[pair.document["router"]["kind"]].control  # its list is then not shown to others
        assert {said[name]["routed"] for name in ("prefill-0", "decode-0")} == {None if keyed else True}
        assert said["prefill-0"]["registry"] is (True if pair.document["engine"] == "sglang" else None)
        assert said["decode-0"]["version"]
        report = outside.check("--live")
        assert report["ok"], report
        assert drift(report) == []
        assert {one["by"] for one in report["judged_for"]} == {"the engine itself"}

    def test_each_transfer_is_an_event_inside_the_engine(self, pair: Fleet) -> None:
        before = len(written(pair))
        assert pair.complete("router", "Nobody has asked this. " * 20)[0] == 200
        until("the transfer is an event", lambda: len(written(pair)) > before, timeout=30)
        newest = max(written(pair), key=lambda event: float(event["at"]))["data"]
        assert newest["bytes"] > 0
        assert newest["seconds"] >= 0

    @pytest.mark.parametrize("unit", ["prefill-0", "decode-0", "router"])
    def test_a_killed_unit_is_seen_at_once_and_the_fleet_heals(self, pair: Fleet, unit: str) -> None:
        """Status looks when it is asked: what it then says of a dead unit is the truth, not a record of it."""
        expected = pair.answer("aggregate-0")
        before = pair.status()[unit]
        killed = pair.now()
        os.kill(before["pid"], signal.SIGKILL)
        looked: list[float] = []

        def noticed() -> bool:
            document = pair.observe()
            looked.append(document["at"] - killed)
            now = next(one for one in document["units"] if one["name"] == unit)
            return bool(now["state"] != "ready" or now["restarts"] > before["restarts"])

        until(f"status says what became of {unit}", noticed, timeout=60)
        assert looked[-1] <= SEEN_WITHIN_S, looked
        until(f"{unit} is ready again", lambda: pair.status()[unit]["state"] == "ready")
        assert pair.status()[unit]["restarts"] == before["restarts"] + 1
        until("the fleet serves again", lambda: serves(pair, expected))
