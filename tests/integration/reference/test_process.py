"""The engine as a process: what it refuses at start, how it answers, how it leaves."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.integration.reference.processes import ENVIRONMENT, Unit, engine, free_ports, unit

pytestmark = pytest.mark.integration


def refused(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run an engine that should not start; `before` is code that spoils its interpreter first."""
    start = "import runpy; runpy.run_module('pdctl.engines.reference', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", f"{before}\n{start}", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Unit:
    with engine(tmp_path_factory.mktemp("log") / "engine.log") as made:
        yield made


@pytest.mark.code("PD3040")
def test_a_port_in_use_is_named(one: Unit) -> None:
    ended = refused("--port", str(one.port))
    assert ended.returncode == 1
    assert f"error PD3040 cannot listen on 127.0.0.1:{one.port}" in ended.stderr


@pytest.mark.code("PD3041")
def test_a_missing_model_ends_the_engine_with_status_2() -> None:
    ended = refused("--port", "0", "--model", "builtin:nope")
    assert ended.returncode == 2
    assert "error PD3041 --model" in ended.stderr


@pytest.mark.code("PD3043")
@pytest.mark.parametrize("package", ["torch", "uvicorn"])
def test_a_missing_package_is_named(package: str) -> None:
    ended = refused("--port", "0", before=f"import sys; sys.modules[{package!r}] = None")
    assert ended.returncode == 1
    assert "error PD3043" in ended.stderr
    assert package in ended.stderr


def test_a_registry_port_in_use_ends_the_engine(one: Unit) -> None:
    arguments = ("--port", "0", "--role", "prefill", "--transfer-backend", "memory")
    ended = refused(*arguments, "--bootstrap-port", str(one.port))
    assert ended.returncode == 1
    assert "error PD40" in ended.stderr


def test_it_leaves_in_order_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    with engine(tmp_path / "engine.log") as made:
        stream = httpx.stream(
            "POST",
            made.url + "/generate",
            json={"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 2000}},
        )
        with stream as answer:
            next(answer.iter_lines())
            made.process.terminate()
            assert made.process.wait(10) == 0
    assert "stopped" in (tmp_path / "engine.log").read_text()


def test_a_client_that_hangs_up_ends_its_request(one: Unit) -> None:
    with pytest.raises(httpx.ReadTimeout):
        one.post(
            "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}, timeout=0.3
        )
    deadline = time.monotonic() + 20
    while one.metric("pdctl_ref_requests_running") > 0:
        assert time.monotonic() < deadline
    assert 'pdctl_ref_requests_failed_total{code="PD3052"} 1.0' in one.get("/metrics").text


def test_it_answers_what_routers_and_operators_ask(one: Unit) -> None:
    assert one.get("/health").status_code == one.get("/health_generate").status_code == 200
    assert one.get("/v1/models").json()["data"][0]["id"] == "tiny-hybrid"
    assert one.get("/model_info").json()["is_generation"] is True
    info = one.get("/server_info").json()
    assert (info["disaggregation_mode"], info["page_size"]) == ("null", 16)
    assert info["pdctl_layout"] == one.get("/pdctl/layout").json()


def test_streams_end_in_the_same_text_as_the_whole_answer(one: Unit) -> None:
    body = {"text": "hello", "sampling_params": {"temperature": 0, "max_new_tokens": 16}}
    whole = one.post("/generate", body).json()
    with httpx.stream("POST", one.url + "/generate", json=body | {"stream": True}, timeout=30) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["output_ids"] == whole["output_ids"]
    assert [len(json.loads(event)["output_ids"]) for event in events[:-1]] == list(range(1, 17))
    openai = {"prompt": "hello", "temperature": 0, "max_tokens": 16, "stream": True}
    with httpx.stream("POST", one.url + "/v1/completions", json=openai, timeout=30) as answer:
        parts = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["text"]
    assert parts[-1]["choices"][0]["finish_reason"] == "length"


def test_a_chosen_free_port_is_announced(tmp_path: Path) -> None:
    [unused] = free_ports(1)
    command = [sys.executable, "-m", "pdctl.engines.reference", "--port", str(unused), "--served-model-name", "other"]
    with unit(command, unused, "/health", tmp_path / "engine.log") as made:
        assert made.get("/v1/models").json()["data"][0]["id"] == "other"
