"""`pdctl check` on a fleet of 32 × 32 replicas: CPU time of the whole process, from the start of the interpreter.

Milliseconds belong to a machine, so the same is given in starts of an interpreter that imports what `check` stands on.
(pydantic imports most of itself when its classes are first asked for: that part is counted as ours.)
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.harness import Row, at_most, in_turn, paired, plain

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
    """Fifteen runs in turn, after one that writes the bytecode that an installed package has: the least, for noise only
    adds, and the median of their ratios.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text(json.dumps(CONFIG))
        (root / "fleet.yaml").write_text(FLEET)
        check = [sys.executable, "-m", "pdctl", "check", str(root / "fleet.yaml"), "-o", "json"]
        report = json.loads(_run(check, root).stdout)
        assert len(report["pairs"]) == 1024
        assert report["ok"]
        imports = [sys.executable, "-c", "import typer, pydantic, yaml"]
        _run(imports, root)
        whole, bare = in_turn(15, lambda: _cpu_ms(check, root), lambda: _cpu_ms(imports, root))
    name = "check 32 × 32 replicas (1,024 pairs), CPU of the whole process"
    yield at_most(name, min(whole), "ms", 300)
    yield plain("of it: the interpreter, typer, pydantic and yaml", min(bare), "ms")
    yield at_most(f"{name}: against the imports alone", paired(whole, bare), "×", 2)


def _run(command: list[str], root: Path) -> "subprocess.CompletedProcess[bytes]":
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONPYCACHEPREFIX": str(root / "bytecode")}
    return subprocess.run(command, env=env, capture_output=True, check=True)


def _cpu_ms(command: list[str], root: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command, root)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
