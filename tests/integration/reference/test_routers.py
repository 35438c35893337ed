"""The real routers, unmodified, before a pair of processes: what comes out is what one engine alone computes."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pdctl.cli.app import main
from pdctl.launch.state import state_root
from tests.integration.reference.harness import prompts
from tests.integration.reference.processes import Unit, engine, free_ports, router

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROUTERS = {"smg": ("smg", "launch"), "sglang-router": ("sglang_router.launch_router",)}
SIXTEEN = prompts(16)


class Fleet(NamedTuple):
    """A pair over Mooncake, and an engine alone."""

    alone: Unit
    prefill: Unit
    decode: Unit
    bootstrap: int


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs: Path = tmp_path_factory.mktemp("logs")
    [bootstrap] = free_ports(1)
    with (
        engine(logs / "alone.log") as alone,
        engine(logs / "prefill.log", "--role", "prefill", "--bootstrap-port", str(bootstrap)) as prefill,
        engine(logs / "decode.log", "--role", "decode") as decode,
    ):
        yield Fleet(alone, prefill, decode, bootstrap)


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> list[dict[str, Any]]:
    return send(fleet.alone, 4)


def send(target: Unit, at_once: int) -> list[dict[str, Any]]:
    """All prompts, so many in flight."""
    sampling = {"temperature": 0, "max_new_tokens": 64}

    def one(prompt: tuple[int, ...]) -> dict[str, Any]:
        body = {"input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}
        answer = target.post("/generate", body)
        assert answer.status_code == 200, answer.text
        document: dict[str, Any] = answer.json()
        return document

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, SIXTEEN))


def said(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Tokens, finish reason and prompt length."""
    meta = answer["meta_info"]
    return answer["output_ids"], answer["text"], meta["finish_reason"], meta["prompt_tokens"]


def logprobs(answers: list[dict[str, Any]]) -> list[float]:
    """Those of all tokens, one after the other."""
    return [triple[0] for answer in answers for triple in answer["meta_info"]["output_token_logprobs"]]


@pytest.mark.parametrize("at_once", [1, 16])
def test_sixteen_prompts_through_smg_equal_the_engine_alone(
    fleet: Fleet, expected: list[dict[str, Any]], at_once: int, tmp_path: Path
) -> None:
    with router(tmp_path / "router.log", ROUTERS["smg"], fleet.prefill, fleet.bootstrap, fleet.decode) as front:
        answers = send(front, at_once)
    assert [said(answer) for answer in answers] == [said(answer) for answer in expected]
    differences = [abs(a - b) for a, b in zip(logprobs(answers), logprobs(expected), strict=True)]
    print(f"largest logprob difference, {at_once} at once: {max(differences):.1e}")
    assert max(differences) < 1e-9
    assert {answer["meta_info"]["prompt_tokens_computed"] for answer in answers} == {0}
    assert fleet.decode.metric("pdctl_ref_prompt_tokens_computed_total") == 0


def test_sglang_router_routes_completions_and_streams(fleet: Fleet, tmp_path: Path) -> None:
    body = {"model": "tiny-hybrid", "prompt": "the quick brown fox", "temperature": 0, "max_tokens": 12}
    body |= {"logprobs": 1, "return_token_ids": True}
    expected = fleet.alone.post("/v1/completions", body).json()["choices"][0]
    module = ROUTERS["sglang-router"]
    with router(tmp_path / "router.log", module, fleet.prefill, fleet.bootstrap, fleet.decode) as front:
        whole = front.post("/v1/completions", body).json()["choices"][0]
        stream = front.post("/v1/completions", body | {"stream": True}).text
    ours, theirs = whole.pop("logprobs"), expected.pop("logprobs")
    assert whole == expected
    assert ours["tokens"] == theirs["tokens"]
    assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=1e-9)
    assert len(whole["token_ids"]) == len(ours["tokens"]) == 12
    assert whole["prompt_token_ids"] == list(b"the quick brown fox")
    assert stream.rstrip().endswith("data: [DONE]")
    assert '"finish_reason":"length"' in stream


def test_a_request_without_a_room_is_told_of_the_router(fleet: Fleet) -> None:
    answer = fleet.decode.post("/generate", {"text": "x"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "PD3054"


def test_decode_that_finds_no_prefill_fails_with_a_code(tmp_path: Path) -> None:
    [closed] = free_ports(1)
    body = {"text": "x", "bootstrap_host": "127.0.0.1", "bootstrap_port": closed, "bootstrap_room": 1}
    with engine(tmp_path / "decode.log", "--role", "decode", "--session", "bootstrap_s=1") as decode:
        answer = decode.post("/generate", body)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"].startswith("PD40")


EXTERNAL = """\
schema: pdctl.fleet/v1
name: outside
model: {{path: builtin:tiny-hybrid}}
engine: reference
transfer: {{protocol: tcp}}
launcher: {{kind: external}}
prefill: {{urls: [{{url: '{prefill}', bootstrap: {bootstrap}, log: {log}}}], page_size: 16}}
decode: {{urls: ['{decode}'], page_size: 16}}
roles: {{aggregate: {{urls: ['{alone}'], page_size: 16}}}}
"""


def test_a_fleet_that_pdctl_did_not_start_is_looked_at_and_judged(
    fleet: Fleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a router, behind one, and with two of its URLs swapped; nothing is written."""
    file = tmp_path / "fleet.yaml"
    urls = {"prefill": fleet.prefill.url, "decode": fleet.decode.url, "alone": fleet.alone.url}
    text = EXTERNAL.format(**urls, bootstrap=fleet.bootstrap, log=fleet.prefill.log)

    def run(*words: str) -> tuple[int, Any]:
        status = main([words[0], str(file), *words[1:], "-o", "json"])
        return status, json.loads(capsys.readouterr().out)

    file.write_text(text)
    status, found = run("status")
    assert (status, found["ok"], found["url"], found["notes"]) == (0, True, None, [])
    assert [unit["answers"]["role"] for unit in found["units"]] == ["prefill", "decode", "aggregate"]
    status, report = run("check", "--live")
    assert (status, [pair["verdict"] for pair in report["pairs"]]) == (0, ["fits"])
    assert {one["by"] for one in report["judged_for"]} == {"the engine itself"}
    with router(tmp_path / "router.log", ROUTERS["smg"], fleet.prefill, fleet.bootstrap, fleet.decode) as front:
        file.write_text(f"{text}router: {{url: '{front.url}'}}\n")
        status, found = run("status")
        assert (status, found["url"], found["notes"]) == (0, front.url, [])
        assert [unit["answers"]["routed"] for unit in found["units"]] == [True, True, None, None]
        file.write_text(
            EXTERNAL.format(
                **{**urls, "decode": fleet.prefill.url, "prefill": fleet.decode.url}, bootstrap=1, log="none.log"
            )
        )
        status, found = run("status")
    assert (status, [unit["state"] for unit in found["units"]]) == (3, ["wrong", "wrong", "ready"])
    assert main(["logs", str(file), "prefill-0"]) == 2
    file.write_text(text)
    assert main(["logs", str(file), "prefill-0", "-n", "1"]) == 0
    assert capsys.readouterr().out
    assert not (state_root() / "outside").exists()
