"""vLLM's regions: K and V of a layer in one, blocks that grow until a recurrent state fits."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.algebra import faults
from pdctl_transfer.layout.manifest import Component, Group
from tests.unit.derive.models import DSA, LLAMA, MLA, V4, oracle


def layout(config: dict[str, Any], **asked: Any) -> Derived:
    derived = derive(Request(**{"engine": "vllm", "role": "prefill", "config": config, **asked}))
    assert faults(derived.manifest) == []
    return derived


def component(derived: Derived, kind: str) -> Component:
    return {one.kind: one for one in derived.manifest.stages[0].components}[kind]


def test_heads_are_outermost_where_the_connector_asks_for_it() -> None:
    derived = layout(LLAMA, tp=2)
    (entry, *_) = component(derived, "kv").entries
    assert (entry.tensor, entry.outer, entry.groups, entry.inner_bytes) == ("kv", 1, (Group(2, 1),), 16 * 128 * 2)
    assert derived.manifest.kv_layout == "hnd"
    assert "nixl" in derived.sources["kv_layout"].source


def test_four_bits_have_their_scales_in_the_row() -> None:
    """Where it was seen: K and V alone, on GPUs. Elsewhere, and of other quantised types, the pages are not known."""
    (entry, *_) = component(layout(LLAMA, kv_cache_dtype="nvfp4"), "kv").entries
    assert entry.inner_bytes == 16 * 2 * (64 // 2 + 64 // 16)
    for config, asked in [
        (LLAMA, {"kv_cache_dtype": "nvfp4", "platform": "cpu"}),
        (MLA, {"kv_cache_dtype": "nvfp4"}),
        (MLA, {"kv_cache_dtype": "nvfp4_ds_mla"}),
        (oracle("qwen3_next_80b"), {"kv_cache_dtype": "nvfp4"}),
        (LLAMA, {"kv_cache_dtype": "int8_per_token_head"}),
    ]:
        with pytest.raises(ConfigError, match="its pages are not known"):
            layout(config, **asked)
    with pytest.raises(InputError, match="expected auto"):
        layout(LLAMA, kv_cache_dtype="nvfp5")


def test_layout_named_by_the_environment_wins() -> None:
    derived = layout(LLAMA, flags={"kv-cache-layout": "NHD"})
    (entry, *_) = component(derived, "kv").entries
    assert (derived.manifest.kv_layout, entry.outer, entry.inner_bytes) == ("nhd", 16, 128 * 2)
    with pytest.raises(InputError, match="expected one of NHD"):
        layout(LLAMA, flags={"kv-cache-layout": "XYZ"})


@pytest.mark.parametrize(
    ("config", "asked", "block"),
    [
        (LLAMA, {}, 16),
        (LLAMA, {"page_size": 128}, 128),
        (LLAMA, {"platform": "npu"}, 128),
        (LLAMA, {"platform": "cpu"}, 128),
        (MLA, {"platform": "cpu"}, 16),
        (MLA, {}, 16),
        (MLA, {"kv_cache_dtype": "fp8"}, 64),
        (MLA, {"platform": "sm100"}, 32),
        (DSA, {}, 64),
    ],
)
def test_block_size_where_none_is_given(config: dict[str, Any], asked: dict[str, Any], block: int) -> None:
    assert layout(config, **asked).manifest.page_size == block


def test_blocks_grow_until_a_recurrent_state_fits() -> None:
    """Qwen3-Next at TP 1: 2 × 24,576 + 1,048,576 bytes of state in bf16, 2,048 bytes of KV a token."""
    derived = layout(oracle("qwen3_next_80b"))
    held = sum(component(derived, "mamba").entries[at].item_len for at in (0, -1))
    (kv, *_) = component(derived, "kv").entries
    assert kv.item_len >= held > kv.item_len - 16 * 2048
    assert derived.manifest.page_size % 16 == 0
    assert "holds a recurrent state" in derived.sources["page_size"].source


def test_state_first_windows_unless_asked_otherwise() -> None:
    config = oracle("qwen35_397b_a17b")
    first = component(layout(config, backend="mooncake"), "mamba").entries
    turned = component(layout(config, backend="mooncake", flags={"ssm-conv-state-layout": "DS"}), "mamba").entries
    assert (first[0].outer, first[0].inner_bytes) == (3, 2)
    assert (turned[0].outer, turned[0].inner_bytes) == (1, 6)
    assert first[-1].inner_bytes == 128 * 128 * 4


def test_recurrent_state_on_a_cpu_is_as_asked_and_else_as_its_fast_kernel_takes_it() -> None:
    """Which kernel that is depends on the CPU; a flag makes it sure."""
    config = oracle("qwen3_next_80b")

    def state(flags: dict[str, str]) -> tuple[int, bool]:
        derived = layout(config, platform="cpu", flags=flags)
        return component(derived, "mamba").entries[-1].inner_bytes // 128**2, "AVX-512" in " ".join(derived.notes)

    assert state({}) == (4, True)
    assert state({"mamba-ssm-dtype": "float32"}) == (4, False)
    assert state({"mamba-ssm-dtype": "bfloat16"}) == (2, False)


def test_drafts_follow_the_last_layer() -> None:
    derived = layout(MLA, speculative={"method": "deepseek_mtp", "num_speculative_tokens": 1})
    assert [entry.layer for entry in component(derived, "kv").entries] == [0, 1, 2, 3]


def test_shared_indices_have_no_region() -> None:
    derived = layout({**DSA, "index_topk_pattern": "FSF"})
    assert [entry.layer for entry in component(derived, "dsa").entries] == [0, 2]


def test_sliding_layers_are_apart_where_the_connector_knows_hybrid_caches() -> None:
    gemma = oracle("gemma3_27b")
    assert {one.kind for one in layout(gemma).manifest.stages[0].components} == {"kv", "swa"}
    together = layout(gemma, backend="nccl")
    assert [one.kind for one in together.manifest.stages[0].components] == ["kv"]
    assert len(component(together, "kv").entries) == 62


def test_windows_over_nixl_are_as_its_worker_takes_them() -> None:
    """It does not start with state-first windows, so the layout without the variable is none."""
    derived = layout(oracle("qwen35_397b_a17b"))
    first = component(derived, "mamba").entries[0]
    assert (first.outer, first.inner_bytes) == (1, 6)
    assert "VLLM_SSM_CONV_STATE_LAYOUT=DS" in " ".join(derived.notes)


@pytest.mark.parametrize(("size", "model"), [(64, "minimax_m3_sparse"), (192, "minimax_m3_sparse"), (128, "v4")])
def test_blocks_that_the_models_kernels_do_not_take_are_refused(size: int, model: str) -> None:
    config = V4 if model == "v4" else oracle(model)
    with pytest.raises(ConfigError, match="expected a multiple of"):
        layout(config, page_size=size)


def test_index_keys_have_the_type_that_is_asked_for() -> None:
    """MiniMax-M3 keeps 128 elements a token in 16 bits or fp8, DeepSeek-V4 fp8 with scales or MXFP4."""
    sizes = [
        component(layout(config, flags=flags), kind).entries[0].item_len
        for config, kind, flags in (
            (oracle("minimax_m3_sparse"), "minimax_index_k", {}),
            (oracle("minimax_m3_sparse"), "minimax_index_k", {"indexer-kv-dtype": "fp8"}),
            (V4, "dsa", {}),
            (V4, "dsa", {"indexer-kv-dtype": "mxfp4"}),
        )
    ]
    assert sizes == [128 * 256, 128 * 128, 64 * 132 + 192, 64 * 68 + 256]


def test_rows_of_deepseek_v4_are_packed_but_for_one_backend() -> None:
    packed = layout(V4)
    plain = layout(V4, kv_cache_dtype="fp8", flags={"attention-backend": "FLASHINFER_MLA_SPARSE_DSV4"})
    assert packed.manifest.kv_cache_dtype == "fp8_ds_mla"
    assert component(packed, "swa").entries[0].item_len == 65 * 576
    assert component(plain, "swa").entries[0].item_len == 64 * 512
    with pytest.raises(InputError, match="expected auto or fp8"):
        layout(V4, kv_cache_dtype="bfloat16")


def test_drafts_of_deepseek_v4_keep_a_window() -> None:
    derived = layout(V4, speculative={"method": "mtp", "num_speculative_tokens": 1})
    assert [entry.layer for entry in component(derived, "swa").entries] == [*range(6)]
    assert sorted(entry.layer or 0 for entry in component(derived, "kv").entries) == [1, 2, 3, 4]


def test_layers_that_do_not_divide_go_before_the_last_stage() -> None:
    assert [stage.layers for stage in layout({**LLAMA, "num_hidden_layers": 5}, pp=2).manifest.stages] == [
        (0, 3),
        (3, 5),
    ]
