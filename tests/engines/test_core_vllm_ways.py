"""vLLM's connector over the core beside NIXL's: who takes which way, what is moved, what is said of it; on CPU."""

import re
import subprocess
import sys

import pytest

from pdctl.engines import http
from pdctl.engines.alike import NONE
from pdctl.engines.answer import request
from pdctl.engines.base import Instance
from pdctl.engines.vllm.probe import FOR_PREFILL
from pdctl_transfer.session import Options
from tests.engines import core_pairs
from tests.engines.core_pairs import AT_ONCE, TOKENS, Tokens
from tests.engines.fleets import ROOT
from tests.engines.mishaps import at_rest
from tests.engines.shared import Shared, ways

pytestmark = pytest.mark.engines
ANSWERED_S = 200.0
SHAPE = "from pdctl_transfer.plugins.vllm_core_shape import deviation; print(deviation() or 'as probed')"


def test_the_installed_engine_has_the_probed_shape() -> None:
    """A release of another one would get its own connector, and nobody would see it but in the log."""
    tool = [sys.executable, str(ROOT / "tools" / "engine_envs.py"), "vllm", "--print-python"]
    python = subprocess.run(tool, capture_output=True, text=True, check=True).stdout.split()[-1]
    env = {"PYTHONPATH": str(ROOT / "transfer"), "PATH": "/usr/bin:/bin"}
    said = subprocess.run([python, "-c", SHAPE], env=env, capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[-2] == "as probed", said


def prefilled(engine: Instance, prompt: Tokens) -> dict[str, object]:
    """What an engine that has prefilled tells decode."""
    body = request(engine.served_name, prompt, 1) | {"max_tokens": 1, "kv_transfer_params": dict(FOR_PREFILL)}
    body.pop("logprobs", None)
    return dict(http.post_json(f"{engine.url}/v1/completions", body, ANSWERED_S)["kv_transfer_params"])


def decoded(engine: Instance, prompt: Tokens, params: dict[str, object]) -> str:
    body = request(engine.served_name, prompt, TOKENS) | {"kv_transfer_params": params}
    return str(http.post_json(f"{engine.url}/v1/completions", body, ANSWERED_S)["choices"][0]["text"])


def figures(engine: Instance) -> dict[str, float]:
    """The core's counters on `/metrics`, by outcome."""
    _, text = http.request(f"{engine.url}/metrics")
    found = re.findall(r'^vllm:pdctl_transfers_total\{.*outcome="(\w+)"\} (\S+)$', text.decode(), re.MULTILINE)
    return {outcome: float(value) for outcome, value in found}


def test_a_decode_without_the_plugin_reads_by_nixl(vllm_dense: Shared) -> None:
    """The same producer serves both; its room is withdrawn, and no lease keeps its blocks."""
    assert vllm_dense.unlike(("p1", "off"), core_pairs.few(), NONE, TOKENS, AT_ONCE) == []
    prefill, _ = vllm_dense.ready("p1", "off")
    (way,) = ways(prefill)
    assert (way["way"], way["code"]) == ("engine", "PD3150")
    at_rest(vllm_dense, "p1", "off", timeout=20)


def test_a_prefill_without_the_plugin_is_read_by_nixl(vllm_dense: Shared) -> None:
    assert vllm_dense.unlike(("p-off", "d1"), core_pairs.few(), NONE, TOKENS, AT_ONCE) == []
    _, decode = vllm_dense.ready("p-off", "d1")
    assert vllm_dense.way("p-off", "d1") == "engine"
    assert {way["code"] for way in ways(decode) if way["way"] == "engine"} == {"PD3149"}
    at_rest(vllm_dense, "p-off", "d1", timeout=20)


def test_by_the_core_the_blocks_are_free_at_once_and_counted(vllm_dense: Shared) -> None:
    """NIXL's lease of half a minute keeps none of them."""
    prompt = core_pairs.fresh(700)
    (expected,) = vllm_dense.expected([prompt], TOKENS)
    prefill, decode = vllm_dense.ready("p1", "d1")
    before = [figures(engine).get("confirmed", 0.0) for engine in (prefill, decode)]
    assert vllm_dense.unlike(("p1", "d1"), [prompt], NONE, TOKENS, 1) == [], expected
    at_rest(vllm_dense, "p1", "d1", timeout=15)
    assert [figures(engine)["confirmed"] for engine in (prefill, decode)] == [count + 1 for count in before]
    assert "vllm:pdctl_transfer_seconds_count" in http.request(f"{decode.url}/metrics")[1].decode()


def test_what_decodes_cache_holds_is_not_moved(vllm_dense: Shared) -> None:
    """The same prompt twice: the second time only its last block, and of one that ends with a block nothing."""
    prefill, decode = vllm_dense.ready("p1", "d1")
    prompt = core_pairs.fresh(3 * 128 + 9)
    first = decoded(decode, prompt, prefilled(prefill, prompt))
    again = decoded(decode, prompt, prefilled(prefill, prompt))
    assert first == again
    moved = [e["data"]["bytes"] for e in http.get_json(f"{prefill.url}/pdctl/events") if e["what"] == "written"]
    assert moved[-1] * 4 == moved[-2]
    at_rest(vllm_dense, "p1", "d1", timeout=15)


@pytest.mark.full
def test_blocks_of_a_request_that_decode_refuses_come_back_when_the_rooms_time_is_over(vllm_dense: Shared) -> None:
    """Decode's HTTP server refuses it: neither its scheduler nor the core ever hears of the room."""
    prefill, decode = vllm_dense.ready("p1", "d1")
    prompt = core_pairs.fresh(300)
    body = request(decode.served_name, prompt, 8) | {"kv_transfer_params": prefilled(prefill, prompt)}
    status, _ = http.request(f"{decode.url}/v1/completions", body=body | {"temperature": -1})
    assert status == 400
    at_rest(vllm_dense, "p1", "d1", timeout=Options().bootstrap_s + 30)


def test_a_room_that_is_gone_is_an_error_and_never_an_answer(vllm_dense: Shared) -> None:
    """Decode asks twice for what prefill has given once: its blocks are somebody else's by now."""
    prefill, decode = vllm_dense.ready("p1", "d1")
    prompt = core_pairs.fresh(200)
    params = prefilled(prefill, prompt)
    decoded(decode, prompt, dict(params))
    other = core_pairs.fresh(200)  # the same length, so that decode has nothing of it
    with pytest.raises(http.Unreachable, match="HTTP 500"):
        decoded(decode, other, dict(params))
    assert vllm_dense.unlike(("p1", "d1"), core_pairs.few(), NONE, TOKENS, AT_ONCE) == []
