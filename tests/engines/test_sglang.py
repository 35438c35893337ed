"""The real SGLang on CPU: up, equal to aggregate, watched, refused where it does not fit, healed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.engines import adapter
from pdctl.errors import GateError
from tests.engines.fleets import PROMPT, TOKENS, Fleet, by_hand, example, free_port
from tests.engines.pairs import PairTests, drift, unlike

pytestmark = pytest.mark.engines
Make = Callable[[dict[str, Any]], Fleet]
MORE = 64
OTHER = "builtin:tiny-llama-deep"


@pytest.fixture(scope="module")
def pair(started: Make) -> Fleet:
    """The shipped example beside an aggregate engine."""
    document = example("sglang-cpu")
    fleet = started(document | {"roles": {"aggregate": document["prefill"]}})
    said = fleet.up()
    assert "aggregate-0's" in said, said
    return fleet


class TestPair(PairTests):
    """SGLang over Mooncake, behind smg."""


@pytest.mark.full
def test_prefill_tp1_feeds_decode_tp2(started: Make) -> None:
    """Each half of the KV heads must land in its own rank: a swap gives other tokens at once, with HTTP 200.

    In float32, so that it does not matter in which order two ranks add.
    """
    document = example("sglang-cpu", name="sglang-tp2", decode={"attn_tp": 2})
    for role in ("prefill", "decode"):
        document[role]["args"] = [*document[role]["args"], "--dtype", "float32"]
    wide = started(document | {"roles": {"aggregate": document["prefill"]}})
    said = wide.up()
    assert "equal to aggregate-0's" in said, said
    assert unlike(wide, tokens=48, exact=True) == []
    report = wide.check("--live")
    assert report["ok"], report
    assert drift(report) == []


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
    return adapter("sglang").probe(*sides, PROMPT, TOKENS, 180.0).answer.tokens


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
    document = example("sglang-cpu", name="sglang-other", model={"path": OTHER})
    other = Fleet(tmp_path, document).instance("prefill-0", http=free_port(), bootstrap=free_port())
    with by_hand(other, logs=tmp_path):
        with pytest.raises(GateError, match="PD1013"):
            adapter("sglang").probe(other, misfits.instance("decode-0"), PROMPT, TOKENS, 180.0)
        assert len(through(misfits, "fits-0")) == TOKENS


def test_another_model_is_refused_before_it_starts(misfits: Fleet, tmp_path: Path) -> None:
    """A fleet file has one model: two fleets whose sides are to meet are judged by their layouts."""
    other = Fleet(tmp_path, example("sglang-cpu", name="sglang-other", model={"path": OTHER}))
    prefill, decode = other.layout("prefill"), misfits.layout("decode")
    done = misfits.run("check", str(prefill), str(decode), "-o", "json", status=3)
    assert "PD1013" in {finding["code"] for finding in json.loads(done.stdout)["findings"]}
