"""What a pair's probe sends to each side, and what it makes of the answers."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdctl.engines import adapter
from pdctl.engines.answer import complete
from pdctl.engines.base import Instance
from pdctl.engines.http import Rejected
from pdctl.errors import GateError
from pdctl.fleet.model import Pool
from tests.unit.engines.serving import Handler, serving

REFUSAL = "Requested sample logprobs of 5, which is greater than max allowed: 0"
"""vLLM's, under --max-logprobs 0."""


class Engine(Handler):
    """Answers completions and keeps the bodies; refuses logprobs, or everything, if it is told so."""

    def do_POST(self) -> None:
        server = cast(Any, self.server)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.bodies.append(body)
        refusal = server.refusal if "logprobs" in body or "logprob" not in server.refusal else ""
        if refusal:
            self.answer(400, json.dumps({"error": {"message": refusal}}).encode())
            return
        tokens = list(range(body["max_tokens"]))
        choice: dict[str, Any] = {"text": "x", "token_ids": tokens, "prompt_token_ids": [7]}
        if "logprobs" in body:
            choice["logprobs"] = {"tokens": list(map(str, tokens)), "token_logprobs": [-0.5] * len(tokens)}
        handed = {"do_remote_prefill": True, "remote_block_ids": [[3]]}
        self.answer(200, json.dumps({"choices": [choice], "kv_transfer_params": handed}).encode())


@pytest.fixture
def sides(request: pytest.FixtureRequest) -> Any:
    """Prefill and decode, each a server and its instance."""
    refusal = getattr(request, "param", "")
    fleet = SimpleNamespace(name="probed", engine="vllm", transfer=SimpleNamespace(backend="nixl"))
    with (
        serving(Engine, bodies=[], refusal=refusal) as prefill,
        serving(Engine, bodies=[], refusal=refusal) as decode,
    ):

        def instance(role: str, server: Any) -> Instance:
            ports = {"http": server.server_address[1], "bootstrap": 8998}
            return Instance(f"{role}-0", Pool(served_name="tiny"), cast(Any, fleet), "", "127.0.0.1", ports)

        yield SimpleNamespace(
            prefill=instance("prefill", prefill),
            decode=instance("decode", decode),
            to_prefill=cast(Any, prefill).bodies,
            to_decode=cast(Any, decode).bodies,
        )


def probe(engine: str, sides: Any, prompt: Any = "hello") -> Any:
    return adapter(engine).probe(sides.prefill, sides.decode, prompt, 4, 10.0)


def test_sglang_gets_one_body_on_both_sides(sides: Any) -> None:
    found = probe("sglang", sides, [1, 2, 3])
    assert sides.to_prefill == sides.to_decode
    [body] = sides.to_decode
    assert body["prompt"] == [1, 2, 3]
    assert (body["bootstrap_host"], body["bootstrap_port"]) == ("127.0.0.1", 8998)
    assert found.answer.tokens == (0, 1, 2, 3)
    assert found.answer.steps[0].likely == {"0": -0.5}


def test_vllms_decode_gets_what_prefill_handed_over(sides: Any) -> None:
    found = probe("vllm", sides)
    [first], [second] = sides.to_prefill, sides.to_decode
    assert first["max_tokens"] == 1
    assert first["kv_transfer_params"]["do_remote_decode"] is True
    assert second["kv_transfer_params"]["remote_block_ids"] == [[3]]
    assert found.answer.prompt == (7,)
    assert found.answer.steps[0].likely


@pytest.mark.parametrize("sides", [REFUSAL], indirect=True)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_engines_that_give_no_logprobs_are_asked_without(engine: str, sides: Any) -> None:
    found = probe(engine, sides)
    assert found.answer.tokens == (0, 1, 2, 3)
    assert [step.likely for step in found.answer.steps] == [{}] * 4
    assert "logprobs" not in sides.to_decode[-1]


@pytest.mark.code("PD3008")
@pytest.mark.parametrize("sides", ["this model is not served here"], indirect=True)
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_another_refusal_is_said_and_nothing_is_asked_twice(engine: str, sides: Any) -> None:
    with pytest.raises(GateError, match="this model is not served here") as caught:
        probe(engine, sides)
    assert caught.value.code == "PD3008"
    assert len(sides.to_prefill) == 1
    with pytest.raises(Rejected, match="HTTP 400"):
        complete(sides.decode.url, "tiny", "hello", 4, 10)


@pytest.mark.parametrize("sides", [REFUSAL], indirect=True)
def test_a_completion_is_asked_for_without_logprobs_too(sides: Any) -> None:
    assert complete(sides.decode.url, "tiny", "hello", 3, 10).tokens == (0, 1, 2)
