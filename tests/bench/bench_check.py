"""`pdctl check` on a fleet of 32 × 32 replicas, and on one of 64 × 64 engines of two nodes each: CPU time of the whole
process, from the start of the interpreter.

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
from functools import partial
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
NODES = """\
schema: pdctl.fleet/v1
name: nodes
model: {{path: model}}
engine: sglang
prefill: {{replicas: {count}, nodes: 2, hosts: {prefill}, attn_tp: 8, dp: 2, ports: {{http: 30000, dist_init: 5000}}}}
decode: {{replicas: {count}, nodes: 2, hosts: {decode}, attn_tp: 4, dp: 4, ports: {{http: 30000, dist_init: 5000}}}}
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
    yield _of_nodes()


def _of_nodes() -> Row:
    """Engines of two nodes: as many as a large fleet has, against one of each role, measured in turn."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "model").mkdir()
        (root / "model" / "config.json").write_text(json.dumps(CONFIG))
        checks = [_nodes(root, count) for count in (64, 1)]
        pairs = [len(json.loads(_run(check, root).stdout)["pairs"]) for check in checks]
        assert pairs == [4096, 1]
        many, one = in_turn(9, *(partial(_cpu_ms, check, root) for check in checks))
    name = "check 64 × 64 engines of two nodes each: CPU against 1 × 1"
    return at_most(name, paired(many, one), "×", 2)


def _nodes(root: Path, count: int) -> list[str]:
    """The command that checks this many engines a role, each on two hosts of its own."""
    hosts = {role: json.dumps([f"{role}{number}" for number in range(2 * count)]) for role in ("prefill", "decode")}
    file = root / f"nodes{count}.yaml"
    file.write_text(NODES.format(count=count, **hosts))
    return [sys.executable, "-m", "pdctl", "check", str(file), "-o", "json"]


def _run(command: list[str], root: Path) -> "subprocess.CompletedProcess[bytes]":
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**kept, "PYTHONPYCACHEPREFIX": str(root / "bytecode")}
    return subprocess.run(command, env=env, capture_output=True, check=True)


def _cpu_ms(command: list[str], root: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(command, root)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
