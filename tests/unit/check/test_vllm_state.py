"""What vLLM over NIXL does with MiniMax-M3, DeepSeek-V4 and Qwen4-exp: a fault of each kind and its healthy twin."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.check.test_verdicts import DENSE, connector, verdict
from tests.unit.derive.models import V4, oracle

SPARSE: dict[str, Any] = {
    **DENSE,
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "model_type": "minimax_m3",
    "num_hidden_layers": 6,
    "head_dim": 128,
    "sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1, 1, 1, 1],
        "sparse_disable_index_value": [0, 1, 1, 1, 1, 1],
        "sparse_index_dim": 128,
    },
}
EVEN = {**SPARSE["sparse_attention_config"], "sparse_attention_freq": [1] * 6, "sparse_disable_index_value": [1] * 6}
QWEN4 = oracle("qwen4_exp_flash_next")


@pytest.mark.parametrize(
    ("config", "sides", "want"),
    [
        (SPARSE, ("attn_tp: 2", "attn_tp: 2"), ()),
        (SPARSE, ("attn_tp: 2", "attn_tp: 4"), ()),
        (SPARSE, ("attn_tp: 8", "attn_tp: 4"), ("PD1005",)),
        (SPARSE, ("page_size: 128", "page_size: 256"), ("PD1020",)),
        (V4, ("attn_tp: 2", "attn_tp: 8"), ()),
        (V4, ("attn_tp: 8", "attn_tp: 2"), ()),
        (V4, ("kv_cache_dtype: fp8", "kv_cache_dtype: auto"), ()),
        (QWEN4, ("attn_tp: 2", "attn_tp: 2"), ()),
    ],
)
def test_sizes(tmp_path: Path, config: dict[str, Any], sides: tuple[str, str], want: tuple[str, ...]) -> None:
    report = verdict(tmp_path, "vllm nixl", *sides, config)
    assert tuple(one.code for one in report.findings if one.severity == "error") == want
    assert report.pairs[0].verdict == ("refused" if want else "fits")


PUSHED = (f"pp: 2, {connector('NixlPushConnector', 'kv_producer')}", connector("NixlPushConnector", "kv_consumer"))


@pytest.mark.parametrize(
    ("backend", "config", "sides", "said"),
    [
        ("nixl", SPARSE, PUSHED, "5 regions for 3 layers"),
        ("nixl", {**SPARSE, "sparse_attention_config": EVEN}, PUSHED, None),
        ("nixl", QWEN4, ("attn_tp: 1", "attn_tp: 2"), "both sides below the 2 KV heads"),
        ("nixl", QWEN4, ("attn_tp: 4, page_size: 1568", "attn_tp: 2"), None),
        ("mooncake", QWEN4, ("pp: 2", "attn_tp: 1"), "n-gram embeddings"),
    ],
)
def test_refusals(
    tmp_path: Path, backend: str, config: dict[str, Any], sides: tuple[str, str], said: str | None
) -> None:
    report = verdict(tmp_path, f"vllm {backend}", *sides, config)
    messages = [one.message for one in report.findings if one.severity == "error"]
    if said is None:
        assert messages == []
    else:
        assert any(said in message for message in messages)
