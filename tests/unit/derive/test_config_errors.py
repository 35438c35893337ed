"""A config that is not understood is an error that says which key; never a guess, never a traceback."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.derive import ENGINES, Derived, Request, derive
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.algebra import faults
from tests.unit.derive.models import DSA, FALCON, GEMMA4, LLAMA, MIMO, MLA, V4, oracle

FAMILIES = {
    "llama": LLAMA,
    "mla": MLA,
    "dsa": DSA,
    "mimo": MIMO,
    "gemma4": GEMMA4,
    "falcon": FALCON,
    **{
        name: oracle(name)
        for name in ("kimi_linear_48b", "minimax_m3_sparse", "nemotron3_nano_30b", "qwen3_next_80b", "gpt_oss_120b")
    },
    "qwen4": oracle("qwen4_exp_flash_next"),
}
GONE = object()


def changed(config: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {key: value for key, value in {**config, **keys}.items() if value is not GONE}


@pytest.mark.code("PD0022")
@pytest.mark.parametrize(
    ("config", "key"),
    [
        (changed(LLAMA, num_hidden_layers=GONE), "num_hidden_layers"),
        (changed(LLAMA, num_hidden_layers="32"), "num_hidden_layers"),
        (changed(LLAMA, num_hidden_layers=-1), "num_hidden_layers"),
        (changed(LLAMA, num_hidden_layers=10**12), "num_hidden_layers"),
        (changed(LLAMA, num_hidden_layers=True), "num_hidden_layers"),
        (changed(LLAMA, num_hidden_layers=32.0), "num_hidden_layers"),
        (changed(LLAMA, hidden_size=500), "head_dim"),
        (changed(LLAMA, hidden_size=GONE), "hidden_size"),
        (changed(LLAMA, num_key_value_heads=0), "num_key_value_heads"),
        (changed(LLAMA, num_attention_heads=GONE, num_key_value_heads=GONE, head_dim=64), "num_attention_heads"),
        (changed(LLAMA, torch_dtype="float3"), "torch_dtype"),
        (changed(LLAMA, torch_dtype=16), "torch_dtype"),
        (changed(LLAMA, layer_types=["full_attention"] * 3), "layer_types"),
        (changed(LLAMA, layer_types=["full_attention", "quantum_attention"] * 2), "layer_types"),
        (changed(LLAMA, layer_types="full_attention"), "layer_types"),
        (changed(LLAMA, layer_types=["full_attention", 3, 3, 3]), "layer_types[1]"),
        (changed(LLAMA, layer_types=["full_attention", "linear_attention"] * 2), "linear_num_value_heads"),
        (changed(FAMILIES["gpt_oss_120b"], layer_types=GONE, model_type="own"), "layer_types"),
        (changed(MIMO, hybrid_layer_pattern=GONE), "layer_types"),
        (changed(LLAMA, lru_width=512), "lru_width"),
        (changed(V4, compress_ratios=[4, 128]), "compress_ratios"),
        (changed(V4, compress_ratios=[0, 0, 2, 128]), "compress_ratios"),
        (changed(V4, compress_ratios="4"), "compress_ratios"),
        (changed(V4, index_head_dim=100), "index_head_dim"),
        (changed(V4, sliding_window=GONE, model_type="own"), "sliding_window"),
        (changed(V4, qk_rope_head_dim=512), "qk_rope_head_dim"),
        (changed(V4, num_key_value_heads=2), "num_key_value_heads"),
        (changed(LLAMA, is_encoder_decoder=True), "is_encoder_decoder"),
        (changed(LLAMA, attn_layer_period=4), "attn_layer_period"),
        (changed(LLAMA, mamba_d_state=16), "mamba_d_state"),
        (changed(LLAMA, num_loops=2), "num_loops"),
        (changed(MLA, qk_rope_head_dim=GONE, model_type="own"), "qk_rope_head_dim"),
        (changed(MLA, kv_lora_rank=GONE, model_type="own"), "kv_lora_rank"),
        (changed(DSA, index_head_dim=GONE, model_type="own"), "index_head_dim"),
        (changed(DSA, index_head_dim=100), "index_head_dim"),
        (changed(DSA, index_kpool=4), "index_kpool"),
        (changed(MIMO, hybrid_layer_pattern=[0, 1, 2, 0]), "hybrid_layer_pattern"),
        (changed(MIMO, hybrid_layer_pattern=[0, 1]), "hybrid_layer_pattern"),
        (changed(FALCON, mamba_n_heads=47), "mamba_n_heads"),
        (changed(FALCON, mamba_d_head=63), "mamba_d_head"),
        (changed(FALCON, mamba_d_conv=1), "mamba_d_conv"),
        (changed(FAMILIES["nemotron3_nano_30b"], hybrid_override_pattern="MXM"), "hybrid_override_pattern"),
        (changed(FAMILIES["nemotron3_nano_30b"], n_groups=GONE, model_type="own"), "mamba_n_groups"),
        (changed(FAMILIES["qwen3_next_80b"], linear_conv_kernel_dim=GONE, model_type="own"), "linear_conv_kernel_dim"),
        (
            changed(FAMILIES["qwen3_next_80b"], layer_types=["full_attention"] * 24 + ["linear_attention"] * 24),
            "layer_types",
        ),
        (changed(FAMILIES["kimi_linear_48b"], linear_attn_config=3), "linear_attn_config"),
        (changed(FAMILIES["kimi_linear_48b"], linear_attn_config={"kda_layers": [1]}), "linear_attn_config."),
        (changed(FAMILIES["minimax_m3_sparse"], sparse_attention_config={}), "sparse_attention_freq"),
        (
            changed(FAMILIES["qwen4"], text_config={**FAMILIES["qwen4"]["text_config"], "hc_count": None}),
            "text_config.hc_count",
        ),
        (
            changed(FAMILIES["qwen4"], text_config={**FAMILIES["qwen4"]["text_config"], "ple_layer_ids": [99]}),
            "ple_layer_ids",
        ),
        (
            {"architectures": "LlamaForCausalLM", **{k: v for k, v in LLAMA.items() if k != "architectures"}},
            "architectures",
        ),
        ({}, "num_hidden_layers"),
        ({**LLAMA, "head_dim": 64, "hidden_size": 0}, "hidden_size"),
        ({**LLAMA, "head_dim": 64, "hidden_size": [4096]}, "hidden_size"),
        ({**LLAMA, "num_attention_heads": 32, "num_key_value_heads": 5}, "num_key_value_heads"),
    ],
)
def test_error_names_the_key(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        derive(Request(engine="sglang", role="prefill", config=config, config_source="m/config.json", page_size=64))
    assert key in caught.value.message.split(":")[0] + ":"
    assert caught.value.where == "m/config.json"
    assert caught.value.code == "PD0022"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        ({"engine": "sgllang"}, "--engine"),
        ({"tp": 0}, "--tp"),
        ({"tp": 8, "dp": 3}, "--tp"),
        ({"pp": 5}, "--pp-size"),
        ({"platform": "volta"}, "--platform"),
        ({"kv_cache_dtype": "int3"}, "--kv-cache-dtype"),
    ],
)
def test_arguments_that_no_engine_would_take(asked: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        derive(Request(**{"engine": "sglang", "role": "decode", "config": LLAMA, **asked}))
    assert caught.value.where == where


scalars = st.none() | st.booleans() | st.integers(-2, 70_000) | st.floats() | st.text(max_size=12)
values = scalars | st.lists(scalars, max_size=5) | st.dictionaries(st.text(max_size=8), scalars, max_size=3)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A family's config with one to three keys, nested ones included, gone or replaced by anything."""
    config: dict[str, Any] = dict(FAMILIES[draw(st.sampled_from(sorted(FAMILIES)))])
    for _ in range(draw(st.integers(1, 3))):
        level = config
        key = draw(st.sampled_from(sorted(level)))
        if isinstance(level[key], dict) and level[key] and draw(st.booleans()):
            level[key] = dict(level[key])
            level = level[key]
            key = draw(st.sampled_from(sorted(level)))
        if draw(st.booleans()):
            level[key] = draw(values)
        else:
            level.pop(key)
        if not config:
            break
    return config


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    config=mutated(),
    engine=st.sampled_from(sorted(ENGINES)),
    tp=st.sampled_from([1, 2, 3, 8, 16]),
    pp=st.integers(1, 3),
    platform=st.sampled_from([None, "sm100", "npu"]),
    dtype=st.sampled_from(["auto", "fp8_e4m3"]),
    speculative=st.sampled_from([None, {"algorithm": "EAGLE"}]),
)
def test_no_config_makes_a_traceback(
    config: dict[str, Any],
    engine: str,
    tp: int,
    pp: int,
    platform: str | None,
    dtype: str,
    speculative: dict[str, Any] | None,
) -> None:
    """Whatever is in the config: a layout that agrees with itself, or an error that says where."""
    request = Request(
        engine=engine,
        role="prefill",
        config=config,
        tp=tp,
        pp=pp,
        platform=platform,
        kv_cache_dtype=dtype,
        speculative=speculative,
    )
    derived, refusal = attempt(request)
    if derived is not None:
        assert faults(derived.manifest) == []
    elif refusal is not None:
        assert refusal.message
        assert refusal.where


def attempt(request: Request) -> tuple[Derived | None, InputError | None]:
    try:
        return derive(request), None
    except InputError as error:
        return None, error
