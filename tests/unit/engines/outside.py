"""Engines and routers that somebody else started, as they answer over HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.unit.engines.serving import Recorded, serving

OK = (200, b"")
HTML = (200, b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>")
SGLANG_ROUTE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
Answers = dict[str, tuple[int, bytes]]


def sglang(role: str, bootstrap: int = 0, model: str = "/models/tiny-llama", **more: Any) -> Answers:
    """SGLang 0.5.23: what `/server_info` has, as far as it is read."""
    info = {
        "model_path": model,
        "served_model_name": model,
        "disaggregation_mode": role,
        "disaggregation_bootstrap_port": bootstrap,
        "disaggregation_transfer_backend": "mooncake",
        "tp_size": 1,
        "pp_size": 1,
        "page_size": 32,
        "kv_cache_dtype": "auto",
        "version": "0.5.23",
        "internal_states": [{}],
        **more,
    }
    return {"/health": OK, "/server_info": (200, json.dumps(info).encode()), SGLANG_ROUTE: (200, b"{}")}


def vllm(model: str = "/models/tiny-llama", takes_kv: bool = True, **more: tuple[int, bytes]) -> Answers:
    """vLLM 0.32.0, without the plugin."""
    metrics = b'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="64"} 1.0\n'
    if takes_kv:
        metrics += b'vllm:num_requests_kv_fetch_by_stage{engine="0",model_name="m",stage="in_progress"} 0.0\n'
    return {
        "/health": OK,
        "/version": (200, b'{"version":"0.32.0"}'),
        "/v1/models": (200, json.dumps({"object": "list", "data": [{"id": model, "root": model}]}).encode()),
        "/metrics": (200, metrics),
        **{f"/{path}": answer for path, answer in more.items()},
    }


def worker(url: str, role: str, **more: Any) -> dict[str, Any]:
    """As smg 1.13 lists one."""
    return {"id": "1", "url": url, "worker_type": role, "is_healthy": True, "status": "ready", "load": 0, **more}


def router(*workers: dict[str, Any]) -> Answers:
    return {
        "/readiness": (200, b'{"status":"ready","healthy_workers":2,"total_workers":2}'),
        "/workers": (200, json.dumps({"workers": workers}).encode()),
    }


@contextmanager
def at(answers: Answers) -> Iterator[Any]:
    with serving(Recorded, answers=answers, asked=[]) as server:
        server.url = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
        yield server
