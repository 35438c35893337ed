"""What the plugin costs inside an engine: for each request, and once for each new prefill engine."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from pdctl.derive import Request, derive
from pdctl_transfer.plugins import sglang
from pdctl_transfer.plugins.judge import judge
from tests.bench.harness import Row, at_most, cpu_seconds

REQUESTS = 10_000
#: The geometry of an 80-layer dense model with grouped queries.
LARGE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}


def rows() -> Iterator[Row]:
    """Microseconds a request, milliseconds a handshake; CPU time, least of five."""
    address = "10.0.0.1:8998"
    manager = SimpleNamespace(prefill_info_table={address: object()})
    queue = SimpleNamespace(kv_manager=manager, _ensure_last_attempt_time={}, _ensure_retry_interval=1.0)
    requests = {address: [object()]}

    def accept(_: Any, addresses: dict[str, list[Any]]) -> Any:
        return addresses, []

    def handshakes() -> None:
        for _ in range(REQUESTS):
            sglang._handshake(accept, queue, requests)

    def bare() -> None:
        for _ in range(REQUESTS):
            accept(queue, requests)

    def events() -> None:
        for _ in range(REQUESTS):
            sglang._transferred(metric, sender)

    metric = SimpleNamespace(transfer_latency_s=0.01, transfer_total_bytes=1 << 20)
    sender = SimpleNamespace(bootstrap_room=7)
    hook = (cpu_seconds(handshakes) - cpu_seconds(bare)) / REQUESTS
    yield at_most("plugin: handshake hook, known prefill, a request", hook * 1e6, "µs", 20.0)
    yield at_most("plugin: transfer event, a request", cpu_seconds(events) / REQUESTS * 1e6, "µs", 20.0)
    sides = [derive(Request(engine="sglang", role=role, config=LARGE, tp=8, page_size=64)) for role in _ROLES]
    prefill, decode = (side.manifest for side in sides)
    yield at_most(
        "plugin: judging a new prefill, 80 layers", cpu_seconds(lambda: judge(prefill, decode)) * 1e3, "ms", 50
    )


_ROLES: Any = ("prefill", "decode")
