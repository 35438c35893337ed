"""`pdctl check` on a fleet of 32 × 32 replicas: CPU time of the whole process, from the start of the interpreter."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.harness import Row, at_most, plain

FLEET = """\
schema: pdctl.fleet/v1
name: big
model: {path: model}
engine: sglang
transfer: {backend: mooncake, protocol: rdma}
prefill: {replicas: 32, attn_tp: 4, page_size: 64}
decode: {replicas: 32, attn_tp: 8, page_size: 64}
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}


def rows() -> Iterator[Row]:
    """Least of nine runs (noise only adds), after one that writes the bytecode that an installed package has."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text(json.dumps(CONFIG))
        (root / "fleet.yaml").write_text(FLEET)
        check = [sys.executable, "-m", "pdctl", "check", str(root / "fleet.yaml"), "-o", "json"]
        report = json.loads(_run(check, root).stdout)
        assert len(report["pairs"]) == 1024
        assert report["ok"]
        whole = min(_cpu_ms(check, root) for _ in range(9))
        bare = min(_cpu_ms([sys.executable, "-c", "import typer, pydantic, yaml"], root) for _ in range(9))
    yield at_most("check 32 × 32 replicas (1,024 pairs), CPU of the whole process", whole, "ms", 300)
    yield plain("of it: the interpreter, typer, pydantic and yaml", bare, "ms")


def _run(command: list[str], root: Path) -> "subprocess.CompletedProcess[bytes]":
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONPYCACHEPREFIX": str(root / "bytecode")}
    return subprocess.run(command, env=env, capture_output=True, check=True)


def _cpu_ms(command: list[str], root: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command, root)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
