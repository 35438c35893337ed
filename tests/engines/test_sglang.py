"""The real SGLang on CPU: up, equal to aggregate, watched, refused where it does not fit, healed."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.engines import adapter
from pdctl.engines.http import get_json
from pdctl.errors import GateError
from tests.engines.fleets import PROMPT, TOKENS, Fleet, example, free_port, until

pytestmark = pytest.mark.engines
Make = Callable[[dict[str, Any]], Fleet]
PAGE, MORE = 32, 64


@pytest.fixture(scope="module")
def pair(started: Make) -> Fleet:
    """The shipped example beside an aggregate engine."""
    document = example("sglang-cpu")
    fleet = started(document | {"roles": {"aggregate": document["prefill"]}})
    said = fleet.up()
    assert "equal to aggregate-0's" in said, said
    return fleet


def test_a_completion_through_the_router_equals_the_aggregate_engines(pair: Fleet) -> None:
    for prompt in ("A", PROMPT, PROMPT * 3):
        assert pair.complete("router", prompt) == pair.complete("aggregate-0", prompt)


def test_live_layouts_are_read_and_are_the_derived_ones(pair: Fleet) -> None:
    report = pair.check("--live")
    assert report["ok"], report
    assert [finding["code"] for finding in report["findings"] if finding["code"] in ("PD1025", "PD1026")] == []


def test_each_transfer_is_an_event_inside_the_engine(pair: Fleet) -> None:
    pair.complete("router")
    port = pair.status()["prefill-0"]["port"]
    plugin = get_json(f"http://127.0.0.1:{port}/server_info")["internal_states"][0]["pdctl"]
    written = [event for event in plugin["events"] if event["what"] == "written"]
    assert written
    assert written[-1]["data"]["bytes"] > 0


@pytest.mark.parametrize("unit", ["prefill-0", "decode-0", "router"])
def test_a_killed_unit_is_seen_within_seconds_and_the_fleet_heals(pair: Fleet, unit: str) -> None:
    expected = pair.complete("aggregate-0")
    before = pair.status()[unit]
    os.kill(before["pid"], signal.SIGKILL)

    def noticed() -> bool:
        now = pair.status()[unit]
        return now["state"] != "ready" or now["restarts"] > before["restarts"]

    until(f"status says what became of {unit}", noticed, timeout=15)  # 5 s where the machine is not shared
    until(f"{unit} is ready again", lambda: pair.status()[unit]["state"] == "ready")
    assert pair.status()[unit]["restarts"] == before["restarts"] + 1
    until("the fleet serves again", lambda: pair.complete("router") == expected)


def test_prefill_tp1_feeds_decode_tp2(started: Make) -> None:
    """Each half of the KV heads must land in its own rank: a swap gives other tokens at once, with HTTP 200.

    Compared over the eight tokens of `up`: in bfloat16 two ranks add in another order, and longer answers drift.
    """
    document = example("sglang-cpu", name="sglang-tp2", decode={"attn_tp": 2})
    wide = started(document | {"roles": {"aggregate": document["prefill"]}})
    said = wide.up()
    assert "equal to aggregate-0's" in said, said
    assert wide.check("--live")["ok"]


# ---- what does not fit ----


@pytest.fixture(scope="module")
def misfits(started: Make) -> Fleet:
    """One decode engine, and three prefill engines of which one fits; started against the check's advice."""
    document = example("sglang-cpu", name="sglang-misfits")
    fits = document["prefill"] | {"name": "fits"}
    document["prefill"] = [
        fits,
        fits | {"name": "page", "page_size": MORE},
        fits | {"name": "dtype", "kv_cache_dtype": "bfloat16"},
    ]
    fleet = started(document)
    fleet.up("--skip-phase", "preflight", "--skip-phase", "pairs", "--skip-phase", "completion")
    return fleet


def through(fleet: Fleet, prefill: str) -> tuple[int, ...]:
    """A request over one very pair. Raises GateError with what both sides said."""
    sides = fleet.instance(prefill), fleet.instance("decode-0")
    return adapter("sglang").probe(*sides, PROMPT, TOKENS, 60.0).tokens


@pytest.mark.parametrize(("prefill", "code"), [("page-0", "PD1001"), ("dtype-0", "PD1002")])
def test_a_misfit_is_refused_by_the_plugin_and_decode_lives(misfits: Fleet, prefill: str, code: str) -> None:
    """Without the plugin this request ends the decode engine and hangs the client."""
    before = misfits.status()["decode-0"]
    with pytest.raises(GateError, match=code):
        through(misfits, prefill)
    assert len(through(misfits, "fits-0")) == TOKENS
    after = misfits.status()["decode-0"]
    assert (after["pid"], after["restarts"]) == (before["pid"], before["restarts"])


def test_misfits_are_refused_before_they_start(misfits: Fleet) -> None:
    codes = {(pair["prefill"], code) for pair in misfits.check()["pairs"] for code in pair["codes"]}
    assert {("page-0", "PD1001"), ("dtype-0", "PD1002")} <= codes
    assert not [pair for pair, code in codes if pair == "fits-0" and code in ("PD1001", "PD1002")]


def test_misfits_are_refused_while_they_run(misfits: Fleet) -> None:
    report = misfits.check("--live")
    verdicts = {pair["prefill"]: pair["verdict"] for pair in report["pairs"]}
    assert verdicts["page-0"] == verdicts["dtype-0"] == "refused"
    assert verdicts["fits-0"] != "refused"


def test_another_model_is_refused_by_the_plugin(misfits: Fleet, tmp_path: Path) -> None:
    """A prefill engine of another model, started by hand: its pages have the same length, there are more of them."""
    document = example("sglang-cpu", name="sglang-other", model={"path": "builtin:tiny-llama-deep"})
    other = Fleet(tmp_path, document).instance("prefill-0", http=free_port(), bootstrap=free_port())
    adapter("sglang").ship_core([other.pool])
    adapter("sglang").needs(other.fleet, other.pool)
    made, log = adapter("sglang").command(other), tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            made.argv, env=os.environ | dict(made.env), stdout=output, stderr=output, start_new_session=True
        )
    try:
        until("the other model's engine serves", lambda: "fired up" in log.read_text(errors="replace"))
        with pytest.raises(GateError, match="PD1013"):
            adapter("sglang").probe(other, misfits.instance("decode-0"), PROMPT, TOKENS, 60.0)
        assert len(through(misfits, "fits-0")) == TOKENS
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
