"""Reading running engines, with their endpoints as stand-ins: what is asked, in which order, what is never a pass."""

import json
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest
import zmq

from pdctl.derive import Request, derive
from pdctl.engines.builtin_models import CONFIGS
from pdctl.engines.live import CollectError, Running
from pdctl.engines.sglang.live import collect as collect_sglang
from pdctl.engines.vllm.live import collect as collect_vllm
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.layout.read import encode_manifest
from tests.unit.engines.serving import Handler, serving


def layout(engine: str, role: Role, page_size: int = 32, tp: int = 1) -> Manifest:
    request = Request(
        engine=engine, role=role, config=CONFIGS["tiny-llama"], model_name="m", page_size=page_size, tp=tp
    )
    return derive(request).manifest


class Answers(Handler):
    """Answers GETs from the server's `answers`; 404 for anything else."""

    def do_GET(self) -> None:
        self.answer(*self.server.answers.get(self.path, (404, b"not found")))  # type: ignore[attr-defined]


@pytest.fixture
def http() -> Iterator[ThreadingHTTPServer]:
    with serving(Answers, answers={}) as server:
        yield server


def running(server: ThreadingHTTPServer, role: str, **ports: int) -> Running:
    places = {purpose: ("127.0.0.1", port) for purpose, port in ports.items()}
    return Running(f"{role}-0", role, "sglang", f"http://127.0.0.1:{server.server_address[1]}", places)


def info(**changes: Any) -> bytes:
    return json.dumps({"internal_states": [{}], **changes}).encode()


def test_sglang_prefill_is_asked_at_its_bootstrap_port(http: Any) -> None:
    """All stages stand there; /server_info speaks for one rank."""
    expected = layout("sglang", "prefill")
    http.answers["/pdctl/layout"] = (200, encode_manifest(expected))
    assert collect_sglang(running(http, "prefill", bootstrap=http.server_address[1]), 2.0) == expected


def test_sglang_stages_that_have_not_registered_are_not_a_layout(http: Any) -> None:
    http.answers["/pdctl/layout"] = (503, b"1 stages registered so far")
    with pytest.raises(CollectError, match="503: 1 stages registered so far"):
        collect_sglang(running(http, "prefill", bootstrap=http.server_address[1]), 2.0)


def test_sglang_decode_shows_it_in_server_info(http: Any) -> None:
    expected = layout("sglang", "decode")
    plugin = {"layout": json.loads(encode_manifest(expected))}
    http.answers["/server_info"] = (200, info(internal_states=[{"pdctl": plugin}]))
    assert collect_sglang(running(http, "decode"), 2.0) == expected


def test_sglang_without_the_plugin_is_read_from_its_resolved_arguments(http: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["tiny-llama"]))
    resolved = {"model_path": str(tmp_path), "served_model_name": "m", "disaggregation_mode": "decode"}
    http.answers["/server_info"] = (200, info(**resolved, page_size=64, tp_size=2, kv_cache_dtype="auto"))
    live = collect_sglang(running(http, "decode"), 2.0)
    assert live.stages == layout("sglang", "decode", page_size=64, tp=2).stages
    assert (live.origin, live.page_size) == ("live", 64)


def test_sglang_that_cannot_be_read_says_why(http: Any) -> None:
    http.answers["/server_info"] = (200, info(model_path="org/name", disaggregation_mode="decode"))
    with pytest.raises(CollectError, match="no pdctl plugin in this engine"):
        collect_sglang(running(http, "decode"), 2.0)


@pytest.fixture
def side_channel() -> Iterator[Any]:
    """A listener of vLLM's kind: answers known ranks, and ends on an unknown one, as vLLM's does."""
    payloads: dict[int, dict[str, Any]] = {}
    asked: list[tuple[int, int]] = []
    ports: Queue[int] = Queue()
    done = threading.Event()

    def serve() -> None:
        with zmq.Context() as context, context.socket(zmq.REP) as socket:
            ports.put(socket.bind_to_random_port("tcp://127.0.0.1"))
            while not done.is_set():
                if not socket.poll(20):
                    continue
                _, pp, tp = msgspec.msgpack.decode(socket.recv())
                asked.append((pp, tp))
                if pp not in payloads:
                    return
                socket.send_multipart([msgspec.msgpack.encode(payloads[pp]), msgspec.msgpack.encode(0.0)])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield ports.get(timeout=5), payloads, asked
    done.set()
    thread.join(5)


def registered(page_size: int) -> bytes:
    return msgspec.msgpack.encode(
        {
            "block_size": page_size,
            "physical_blocks_per_logical_kv_block": 1,
            "block_lens": [page_size * 256, page_size * 256],
            "kv_cache_layout": "LBHNC",
        }
    )


def test_vllm_with_the_plugin_shows_its_layout_on_its_own_port(http: Any, side_channel: Any) -> None:
    """Over Mooncake there is no side channel; over NIXL it is left alone."""
    port, _, asked = side_channel
    expected = layout("vllm", "decode", page_size=128)
    http.answers["/pdctl/layout"] = (200, encode_manifest(expected))
    assert collect_vllm(running(http, "decode"), 2.0) == expected
    assert collect_vllm(running(http, "decode", side_channel=port), 2.0) == expected
    assert asked == []


def test_vllm_without_the_plugin_is_rebuilt_from_what_it_registered(
    http: Any, side_channel: Any, tmp_path: Path
) -> None:
    port, payloads, asked = side_channel
    payloads[0] = {"agent_metadata_bytes": registered(256)}
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["tiny-llama"]))
    http.answers["/v1/models"] = (200, json.dumps({"data": [{"id": "m", "root": str(tmp_path)}]}).encode())
    live = collect_vllm(running(http, "prefill", side_channel=port), 2.0)
    assert live.stages == layout("vllm", "prefill", page_size=256).stages
    assert (live.role, live.page_size) == ("prefill", 256)
    assert asked == [(0, 0)]  # asking a rank that does not exist ends vLLM's listener


def test_vllm_that_is_gone_is_an_error_within_the_time_given(http: Any) -> None:
    with pytest.raises(CollectError, match="side channel"):
        collect_vllm(running(http, "prefill", side_channel=1), 2.0)
    gone = Running("prefill-0", "prefill", "vllm", "http://127.0.0.1:1")
    with pytest.raises(CollectError, match="refused"):
        collect_vllm(gone, 0.2)


def test_vllm_with_neither_plugin_nor_side_channel_says_so(http: Any) -> None:
    with pytest.raises(CollectError, match="no pdctl plugin in prefill-0, and it has no NIXL side channel"):
        collect_vllm(running(http, "prefill"), 10.0)


def test_vllm_whose_worker_fails_is_not_a_layout(http: Any) -> None:
    http.answers["/pdctl/layout"] = (500, b"worker died")
    with pytest.raises(CollectError, match="HTTP 500: worker died"):
        collect_vllm(running(http, "prefill"), 10.0)
