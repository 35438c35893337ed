"""Fleet files whose pools carry bytes by the core, or not: one pool for each side of the pairs in `core_pairs`."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pdctl.engines.builtin_models import CONFIGS, write
from tests.engines.fleets import PORTS, example, free_port
from tests.engines.shared import Stand, as_json

INSIDE = Path(__file__).parent / "inside"
"""Loaded by Python itself where it stands on PYTHONPATH."""
FOLDER = "TEST_FAULTS"
"""The variable that says where a test asks for faults."""
SESSION = {"verify": "full", "silent_s": 5.0}
"""Every byte is in the checksum, and a frozen peer is known soon."""
CHUNK = 4096
LONGEST = 18_000
"""Tokens of a context: a prompt of 16,000 and some more."""
HYBRID_LONGEST = 1024
DENSE = ("--dtype", "float32")
PIPELINE = {"pp": 2}
WIDE = {"attn_tp": 2}


def long_model(folder: Path) -> Path:
    """The dense tiny model with room for long prompts."""
    folder.mkdir()
    write(folder, {**CONFIGS["tiny-llama"], "max_position_embeddings": 32768})
    return folder


class Ways(NamedTuple):
    """What goes into engines beside their flags: options of sessions, and where a test asks for faults."""

    session: Mapping[str, Any] = MappingProxyType(SESSION)
    faults: Path | None = None

    @property
    def env(self) -> dict[str, str]:
        """Of every pool: `inside/` is imported."""
        asked = {} if self.faults is None else {FOLDER: str(self.faults)}
        return {"PYTHONPATH": str(INSIDE), **asked, **PORTS}


def sglang(model: Path, ways: Ways, page: int = 32) -> Stand:
    """SGLang, dense, float32."""
    words = ["--max-total-tokens", "40000", "--context-length", str(LONGEST), "--chunked-prefill-size", str(CHUNK)]
    return _sglang("sglang-core", str(model), words, ways, page)


def sglang_hybrid(ways: Ways) -> Stand:
    """SGLang, gated delta net, float32, by torch (`inside/gdn_on_cpu.py`)."""
    words = ["--max-total-tokens", "12000", "--context-length", "2048", "--max-mamba-cache-size", "16"]
    words += ["--disable-radix-cache", "--chunked-prefill-size", "256"]
    return _sglang("sglang-core-hybrid", "builtin:tiny-qwen3-next", words, ways, 32)


def _sglang(name: str, model: str, words: list[str], ways: Ways, page: int) -> Stand:
    words = [*words, "--device", "cpu", "--mem-fraction-static", "0.1", "--max-running-requests", "8", *DENSE]
    cores = dict.fromkeys(("p1", "p2", "staged", "d1", "cached", "off", "off2"), "pdctl")
    cores |= {"auto1": "auto", "d2": "auto", "p-engine": "engine", "d-engine": "engine", "d2-engine": "engine"}

    def pool(name: str, **more: Any) -> dict[str, Any]:
        env = {"SGLANG_MAMBA_CONV_DTYPE": "float32", **ways.env}
        return {"name": name, "page_size": page, "args": words, "env": env, **more}

    document = example("sglang-cpu", name=name, model={"path": model}) | {
        "prefill": [pool("p1"), pool("p2", **WIDE), pool("staged", **PIPELINE), pool("p-engine")],
        "decode": [
            *(pool(name) for name in ("d1", "auto1", "d-engine", "off")),
            *(pool(name, **WIDE) for name in ("d2", "d2-engine", "off2")),
            pool("cached") | {"args": [*words, "--disaggregation-decode-enable-radix-cache"]},
        ],
        "roles": {"aggregate": {key: value for key, value in pool("aggregate").items() if key != "name"}},
    }
    options = as_json(dict(ways.session))
    env = {name: {"PDCTL_CORE": core, "PDCTL_CORE_OPTIONS": options} for name, core in cores.items()}
    for name in ("off", "off2"):
        env[name]["PDCTL_PLUGIN"] = "off"
    return Stand(document, env)


def vllm(model: Path, ways: Ways, page: int = 128) -> Stand:
    """vLLM, dense, float32."""
    words = ["--max-model-len", "8192", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(256 << 20), *DENSE]
    return _vllm("vllm-core", str(model), words, ways, page)


def vllm_hybrid(ways: Ways) -> Stand:
    """vLLM, gated delta net; bfloat16, since its CPU kernel takes nothing else."""
    words = ["--max-model-len", str(HYBRID_LONGEST), "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(64 << 20)]
    words += ["--no-enable-prefix-caching", "--mamba-ssm-cache-dtype", "float32"]
    return _vllm("vllm-core-hybrid", "builtin:tiny-qwen3-next", words, ways, None)


def _vllm(name: str, model: str, words: list[str], ways: Ways, page: int | None) -> Stand:
    size = {} if page is None else {"page_size": page}

    def pool(name: str, role: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
        args = [*words, "--kv-transfer-config", as_json(connector(f"kv_{role}", ways.session))]
        return {"name": name, "args": args, "env": ways.env, **size, **(more or {})}

    document = example("vllm-cpu", name=name, model={"path": model}) | {
        "prefill": [pool("p1", "producer"), pool("p2", "producer", WIDE), pool("p-off", "producer")],
        "decode": [
            *(pool(name, "consumer") for name in ("d1", "off")),
            *(pool(name, "consumer", WIDE) for name in ("d2", "off2")),
        ],
        "roles": {"aggregate": {"args": words, **size}, "aggregate-wide": {"args": words, **size, **WIDE}},
    }
    return Stand(document, {name: {"PDCTL_PLUGIN": "off"} for name in ("p-off", "off", "off2")})


def connector(role: str, session: Mapping[str, Any], fabric: str = "mooncake") -> dict[str, Any]:
    """The value of `--kv-transfer-config` with pdctl's connector; NIXL's serves where the plugin is off."""
    pdctl = {"registry_host": "127.0.0.1", "fabric": fabric, "protocol": "tcp", "session": dict(session)}
    if role == "kv_producer":
        pdctl["registry_port"] = free_port()
    return {
        "kv_connector": "PdctlConnector",
        "kv_connector_module_path": "pdctl_transfer.plugins.vllm_core",
        "kv_role": role,
        "kv_buffer_device": "cpu",
        "kv_connector_extra_config": {"pdctl": pdctl, "backends": ["UCX"]},
    }
