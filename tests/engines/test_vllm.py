"""The real vLLM on CPU: up, hybrid too, equal to aggregate; unequal blocks and expired leases refused."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pdctl.engines import adapter, http
from pdctl.engines.alike import NONE, compare, judge
from pdctl.engines.answer import Answer, from_completion, request
from pdctl.engines.vllm.probe import FOR_PREFILL
from pdctl.errors import GateError
from tests.engines.fleets import PROMPT, TOKENS, Fleet, by_hand, example, free_port
from tests.engines.pairs import PROMPTS, PairTests, drift, unlike

pytestmark = pytest.mark.engines
Make = Callable[[dict[str, Any]], Fleet]
LEASE_S = 20
"""A first request on a busy machine takes longer than five seconds."""
OTHER = "builtin:tiny-llama-deep"


def beside_aggregate(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"roles": {"aggregate": document["prefill"]}}


@pytest.fixture(scope="module")
def pair(started: Make) -> Fleet:
    """The shipped example beside an aggregate engine, with a lease that a test can outwait."""
    lease = {"options": {"kv_connector_extra_config": {"kv_lease_duration": LEASE_S}}}
    fleet = started(beside_aggregate(example("vllm-cpu", transfer=lease)))
    said = fleet.up()
    assert "equal to aggregate-0's" in said, said
    return fleet


class TestPair(PairTests):
    """vLLM over NIXL, behind vLLM's own router."""


@pytest.fixture(scope="module")
def answers(pair: Fleet) -> dict[str, Answer]:
    """The aggregate engine's, kept for a fleet that needs none of its own: same model, same float32."""
    return {prompt: pair.answer("aggregate-0", prompt) for prompt in PROMPTS}


def test_an_expired_lease_is_an_error_with_a_code(pair: Fleet) -> None:
    """Today: HTTP 200 from blocks that prefill has given to someone else."""
    prompt = "Nobody has asked this before. " * 10
    body = {"model": "tiny-llama", "prompt": prompt, "temperature": 0}
    first = http.post_json(
        f"{pair.instance('prefill-0').url}/v1/completions", body | {"max_tokens": 1, "kv_transfer_params": FOR_PREFILL}
    )
    time.sleep(LEASE_S + 1)  # the lease itself is the thing waited for
    decode = pair.instance("decode-0")
    params = {"max_tokens": TOKENS, "kv_transfer_params": first["kv_transfer_params"]}
    with pytest.raises(http.Unreachable, match="HTTP 500"):
        http.post_json(f"{decode.url}/v1/completions", body | params)
    assert "PD3112" in pair.log("decode-0")
    assert pair.events("decode-0")[-1]["data"]["code"] == "PD3112"
    assert unlike(pair, exact=True) == []


@pytest.fixture(scope="module")
def mooncake(answers: object, started: Make) -> Fleet:
    """The stock connector needs an accelerator; the test environment has a module that does without."""
    stand_in = {"kv_connector": "MooncakeCPUConnector", "kv_connector_module_path": "pdctl_vllm_cpu"}
    over_mooncake = {"backend": "mooncake", "options": stand_in}
    fleet = started(example("vllm-cpu", name="vllm-mooncake", transfer=over_mooncake))
    fleet.up()
    return fleet


def test_over_mooncake_completions_equal_the_aggregate_engines(mooncake: Fleet, answers: dict[str, Answer]) -> None:
    for prompt, expected in answers.items():
        verdict = judge(compare(mooncake.answer("router", prompt), expected), NONE)
        assert verdict.kind == "equal", (prompt, verdict.words)


def test_over_mooncake_live_layouts_are_read_and_are_the_derived_ones(mooncake: Fleet) -> None:
    report = mooncake.check("--live")
    assert report["ok"], report
    assert drift(report) == []


def test_over_mooncake_each_write_is_an_event(mooncake: Fleet) -> None:
    assert mooncake.complete("router", "A question of its own. " * 20)[0] == 200
    newest = [event for event in mooncake.events("prefill-0") if event["what"] == "written"][-1]["data"]
    assert newest["bytes"] > 0
    assert newest["blocks"] > 0
    assert newest["seconds"] > 0
    assert {event["what"] for event in mooncake.events("decode-0")} == {"confirmed"}


def test_over_mooncake_another_model_is_refused_by_the_plugin(mooncake: Fleet, tmp_path: Path) -> None:
    document = {**mooncake.document, "name": "vllm-other", "model": {"path": OTHER, "name": "tiny-llama"}}
    ports = {purpose: free_port() for purpose in ("http", "bootstrap", "side_channel")}
    other, decode = Fleet(tmp_path, document).instance("prefill-0", **ports), mooncake.instance("decode-0")
    with by_hand(other, logs=tmp_path), pytest.raises(GateError, match="no token came back: decode-0"):
        adapter("vllm").probe(other, decode, PROMPT, TOKENS, 180.0)
    assert "PD1013" in mooncake.log("decode-0")
    assert mooncake.events("decode-0")[-1]["data"]["code"] == "PD1013"
    assert mooncake.complete("router")[0] == 200
    assert mooncake.status()["decode-0"]["restarts"] == 0


@pytest.fixture(scope="module")
def misfits(started: Make) -> Fleet:
    """Decode with blocks of 256, one prefill engine with 256 and one with 128; started against the check's advice."""
    document = example("vllm-cpu", name="vllm-misfits", decode={"page_size": 256})
    fits = document["prefill"] | {"name": "fits", "page_size": 256}
    document["prefill"] = [fits, fits | {"name": "blocks", "page_size": 128}]
    fleet = started(document)
    fleet.up("--skip-phase", "preflight", "--skip-phase", "pairs", "--skip-phase", "completion")
    return fleet


def test_unequal_blocks_are_refused_by_the_plugin_and_decode_lives(misfits: Fleet) -> None:
    """Today: the handshake passes, HTTP 200, no failure counted, and the output of every prompt is wrong."""
    engine, decode = adapter("vllm"), misfits.instance("decode-0")
    with pytest.raises(GateError, match="HTTP 500"):
        engine.probe(misfits.instance("blocks-0"), decode, PROMPT, TOKENS, 180.0)
    assert "PD1020" in misfits.log("decode-0")
    assert misfits.events("decode-0")[-1]["data"]["code"] == "PD1020"
    tokens = engine.probe(misfits.instance("fits-0"), decode, PROMPT, TOKENS, 180.0).answer.tokens
    assert len(tokens) == TOKENS
    assert misfits.status()["decode-0"]["restarts"] == 0


@pytest.mark.parametrize("how", [(), ("--live",)])
def test_unequal_blocks_are_refused_by_check(misfits: Fleet, how: tuple[str, ...]) -> None:
    verdicts = {pair["prefill"]: pair for pair in misfits.check(*how)["pairs"]}
    assert "PD1020" in verdicts["blocks-0"]["codes"]
    assert verdicts["fits-0"]["verdict"] != "refused"


# ---- recurrent state ----

STATES = (PROMPT * 3, "What is the capital of France?", "1 2 3 4 5 6 7 8 9 10 11", "def f(x):\n    return x + 1\n" * 5)


@pytest.fixture(scope="module")
def hybrid(started: Make) -> Fleet:
    """Gated delta net, attention and experts; bfloat16, since vLLM's CPU kernel takes nothing else."""
    # the kernels' first call may take longer than the default lease on a busy machine
    lease = {"options": {"kv_connector_extra_config": {"kv_lease_duration": 300}}}
    document = example("vllm-cpu", name="vllm-hybrid", model={"path": "builtin:tiny-qwen3-next"}, transfer=lease)
    args = ["--max-model-len", "1024", "--max-num-seqs", "8", "--kv-cache-memory-bytes", "67108864"]
    args += ["--no-enable-prefix-caching", "--mamba-ssm-cache-dtype", "float32"]  # on any CPU
    for role in ("prefill", "decode"):
        document[role] = {"attn_tp": 1, "args": args}
    fleet = started(beside_aggregate(document))
    said = fleet.up()
    assert "aggregate-0's" in said, said
    return fleet


def test_the_hybrid_model_moves_recurrent_state_too(hybrid: Fleet) -> None:
    """Its experts make noise: a pair computes the last token of a prompt by other kernels than an engine alone."""
    assert unlike(hybrid) == []
    report = hybrid.check("--live", "--platform", "cpu")
    assert report["ok"], report
    assert drift(report) == []


# vLLM numbers its groups of blocks in the order of the layers, the first of which is recurrent.
@pytest.mark.parametrize("group", [0, 1], ids=["conv and temporal state", "attention"])
def test_state_of_another_request_is_told_from_noise(hybrid: Fleet, group: int) -> None:
    """Decode reads one of its two groups of blocks from where another request has them, and answers with HTTP 200."""
    expected = {prompt: hybrid.answer("aggregate-0", prompt) for prompt in STATES}
    noise = hybrid.noise(expected.values())
    others = dict(zip(STATES, (*STATES[1:], STATES[0]), strict=True))
    right = [compare(over_pair(hybrid, prompt, prompt, group), expected[prompt]) for prompt in STATES]
    wrong = [compare(over_pair(hybrid, prompt, others[prompt], group), expected[prompt]) for prompt in STATES]
    assert {judge(found, noise).kind for found in right} <= {"equal", "noise"}, (right, noise)
    refused = [judge(found, noise).kind for found in wrong].count("wrong")
    assert refused == len(STATES) if group == 0 else refused > len(STATES) / 2, (wrong, noise)
    assert noise.covers([shift for found in right for shift in found.shifts])
    assert not noise.covers([shift for found in wrong for shift in found.shifts])


def over_pair(fleet: Fleet, prompt: str, where: str, group: int) -> Answer:
    """An answer over the pair, with one group's blocks read from where the prompt `where` has them."""
    body = request(fleet.model, prompt, TOKENS)

    def prefilled(text: str) -> dict[str, Any]:
        asked = body | {"prompt": text, "max_tokens": 1, "kv_transfer_params": FOR_PREFILL}
        answer = http.post_json(f"{fleet.url('prefill-0')}/v1/completions", asked, 180)
        return dict(answer["kv_transfer_params"])

    handed, other = prefilled(prompt), prefilled(where)
    assert len(handed["remote_block_ids"]) == 2
    handed["remote_block_ids"][group] = other["remote_block_ids"][group]
    answer = http.post_json(f"{fleet.url('decode-0')}/v1/completions", body | {"kv_transfer_params": handed}, 180)
    return from_completion(answer)
