"""Variations that configs spell with keys of their own: each with the sizes that the engine's formulas give."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.derive.config import Config
from pdctl.derive.geometry import Compressed, Mla
from pdctl.derive.model import read_geometry
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.algebra import faults, split_faults
from pdctl_transfer.layout.manifest import Component, Group
from tests.unit.derive.models import DSA, FALCON, GEMMA4, LLAMA, MIMO, MLA, V4, oracle


def layout(config: dict[str, Any], **asked: Any) -> Derived:
    derived = derive(Request(**{"engine": "sglang", "role": "prefill", "page_size": 64, "config": config, **asked}))
    assert faults(derived.manifest) == []
    assert split_faults(derived.manifest) == []
    return derived


def component(derived: Derived, kind: str, stage: int = 0) -> Component:
    (found,) = [one for one in derived.manifest.stages[stage].components if one.kind == kind]
    return found


def sizes(derived: Derived, kind: str, stage: int = 0) -> list[tuple[str, int | None, int]]:
    return [(entry.tensor, entry.layer, entry.item_len) for entry in component(derived, kind, stage).entries]


def test_values_narrower_than_keys() -> None:
    """V by `v_head_dim` where the config has one; zero means the same as its absence."""
    derived = layout({**LLAMA, "head_dim": 192, "v_head_dim": 128})
    assert sizes(derived, "kv")[0] == ("k", 0, 64 * 2 * 192 * 2)
    assert sizes(derived, "kv")[4] == ("v", 0, 64 * 2 * 128 * 2)
    assert layout({**LLAMA, "v_head_dim": 0}).manifest.stages == layout(LLAMA).manifest.stages


def test_more_ranks_than_heads_replicate_one_head() -> None:
    (entry, *_) = component(layout(LLAMA, tp=8), "kv").entries
    assert (entry.groups, entry.item_len) == ((Group(2, 1),), 64 * 1 * 64 * 2)


def test_sliding_layers_with_heads_of_their_own() -> None:
    """MiMo-V2: `kv` holds the full layers, `swa` the others, each with its own heads; both pair by position."""
    derived = layout(MIMO, tp=4)
    assert sizes(derived, "kv") == [
        ("k", 0, 64 * 1 * 192 * 2),
        ("k", 3, 64 * 1 * 192 * 2),
        ("v", 0, 64 * 1 * 128 * 2),
        ("v", 3, 64 * 1 * 128 * 2),
    ]
    assert sizes(derived, "swa")[0] == ("k", 1, 64 * 2 * 192 * 2)
    assert component(derived, "swa").index_space == "window_page"
    assert {one.engine_pairs for one in derived.manifest.stages[0].components} == {"position"}


def test_global_layers_with_a_head_size_of_their_own() -> None:
    """Gemma 4 states the sliding geometry in the base keys; few global KV heads hold where K and V are one."""
    derived = layout(GEMMA4)
    assert sizes(derived, "kv") == [("k", 5, 64 * 2 * 512 * 2), ("v", 5, 64 * 2 * 512 * 2)]
    assert sizes(derived, "swa")[0] == ("k", 0, 64 * 8 * 256 * 2)
    apart = {**GEMMA4, "text_config": {**GEMMA4["text_config"], "attention_k_eq_v": False}}
    assert sizes(layout(apart), "kv")[0] == ("k", 5, 64 * 8 * 512 * 2)


def test_ratios_are_read_by_layer_and_the_draft_keeps_the_window_alone() -> None:
    """The list goes on with the draft's layers; a layer without a ratio sees its window and no more."""
    geometry = read_geometry(Config(V4, "config.json"), "sglang")
    assert geometry.compressed == Compressed((0, 4, 128, 4, 128), window=128, index_dim=128)
    assert (geometry.attention, geometry.full, geometry.index) == (Mla(448, 64), (1, 2, 3, 4), None)
    assert geometry.attention_layers == (0, 1, 2, 3, 4)


def test_last_layer_of_a_global_pattern_is_always_full() -> None:
    text = {**GEMMA4["text_config"], "layer_types": ["full_attention"] + ["sliding_attention"] * 5}
    assert [layer for _, layer, _ in sizes(layout({**GEMMA4, "text_config": text}), "kv")] == [0, 5, 0, 5]


@pytest.mark.parametrize(
    ("keys", "shared"),
    [
        ({"indexer_types": ["full", "shared", "full"]}, {1}),
        ({"index_topk_pattern": "FSS"}, {1, 2}),
        ({"index_topk_freq": 2}, {2}),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, {1}),
        ({"cli_factor": 2}, {1}),
        ({}, set()),
    ],
)
def test_layers_that_share_an_index_keep_an_empty_place(keys: dict[str, Any], shared: set[int]) -> None:
    """An engine that counts on a dense list of layers would otherwise pair the wrong ones; drafts share nothing."""
    derived = layout({**DSA, **keys}, speculative={"algorithm": "EAGLE"})
    page = 64 * (128 + 4)
    assert sizes(derived, "dsa") == [("index_k", layer, 0 if layer in shared else page) for layer in range(3)] + [
        ("index_k", 3, page)
    ]
    empty = [entry for entry in component(derived, "dsa").entries if entry.item_len == 0]
    assert all(entry.inner_bytes == 0 for entry in empty)


@pytest.mark.parametrize(
    ("asked", "row"),
    [
        ({"kv_cache_dtype": "bfloat16"}, 1152),
        ({"kv_cache_dtype": "auto"}, 1152),
        ({"kv_cache_dtype": "fp8_e4m3"}, 656),
        ({"kv_cache_dtype": "fp8_e4m3", "platform": "sm100"}, 576),
        ({"kv_cache_dtype": "auto", "platform": "sm100"}, 576),
        ({"kv_cache_dtype": "fp8_e4m3", "flags": {"dsa-prefill-backend": "trtllm"}}, 576),
        ({"kv_cache_dtype": "fp8_e4m3", "flags": {"dsa-decode-backend": "trtllm"}}, 656),
    ],
)
def test_dsa_rows_follow_the_backend_of_the_local_role(asked: dict[str, Any], row: int) -> None:
    derived = layout(DSA, **asked)
    assert sizes(derived, "kv")[0] == ("latent", 0, 64 * row)
    assert derived.manifest.kv_cache_dtype in ("bfloat16", "fp8_e4m3")


def test_auto_is_kept_as_the_string_that_the_engine_compares() -> None:
    assert layout(LLAMA).manifest.kv_cache_dtype == "auto"
    assert layout(LLAMA, kv_cache_dtype="bf16").manifest.kv_cache_dtype == "bf16"
    assert layout({**LLAMA, "torch_dtype": "float16"}).manifest.stages == layout(LLAMA).manifest.stages


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"},
        {"quant_method": "modelopt_fp4", "kv_cache_scheme": {"type": "float", "num_bits": 8, "dynamic": False}},
        {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}},
    ],
)
def test_quantised_checkpoints_keep_fp8(engine: str, said: dict[str, Any]) -> None:
    derived = layout({**LLAMA, "quantization_config": said}, engine=engine)
    assert derived.manifest.kv_cache_dtype == "fp8_e4m3"
    assert sizes(derived, "kv")[0][2] == 64 * 2 * 64 * (2 if engine == "vllm" else 1)
    assert "kv_cache_" in derived.sources["kv_cache_dtype"].source


def test_float32_is_kept_only_where_it_is_asked_for() -> None:
    """Engines run a float32 checkpoint in 16 bits unless --dtype says float32."""
    wide = {**LLAMA, "torch_dtype": "float32"}
    assert sizes(layout(wide), "kv")[0][2] == 64 * 2 * 64 * 2
    assert sizes(layout(wide, flags={"dtype": "float32"}), "kv")[0][2] == 64 * 2 * 64 * 4
    with pytest.raises(InputError, match="float31"):
        layout(wide, flags={"dtype": "float31"})


def test_quantised_weights_alone_change_nothing() -> None:
    for said in ({"quant_method": "fp8"}, {"quant_method": "compressed-tensors", "kv_cache_scheme": None}):
        assert layout({**LLAMA, "quantization_config": said}).manifest.kv_cache_dtype == "auto"


def test_one_mamba_group_is_held_by_every_rank() -> None:
    """Falcon-H1 1.5B's conv state is not proportional to 1/TP once its group replicates."""
    for tp, conv in ((4, 7680), (8, 5376)):
        entry = component(layout(FALCON, tp=tp), "mamba").entries[0]
        assert (entry.item_len, entry.engine_slices) == (conv, "flat")


@pytest.mark.code("PD1004")
def test_mamba_groups_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="mamba_n_groups: 2 groups do not divide by attention TP 4") as refused:
        layout({**FALCON, "mamba_n_groups": 2}, tp=4)
    assert refused.value.code == "PD1004"


@pytest.mark.code("PD1004")
def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="attention TP 3") as refused:
        layout(LLAMA, tp=3)
    assert refused.value.code == "PD1004"


@pytest.mark.code("PD1019")
def test_pages_that_split_a_compressed_key_are_refused() -> None:
    config = oracle("qwen4_exp_flash_next")
    text = {**config["text_config"], "indexer_compress_ratio": 48, "indexer_budget": 96}
    with pytest.raises(ConfigError, match="indexer_compress_ratio") as refused:
        layout({**config, "text_config": text})
    assert refused.value.code == "PD1019"


def test_npu_cuts_latents_into_buffer_groups_with_repeated_ids() -> None:
    """Kimi on NPU: latents, then rope parts, each over the same layers; pages of 128 by default."""
    derived = layout(oracle("kimi_linear_48b"), platform="npu", page_size=None)
    entries = component(derived, "kv").entries
    full = [3, 7, 11, 15, 19, 23, 26]
    assert [entry.layer for entry in entries] == full * 2
    assert [entry.item_len for entry in entries] == [128 * 512 * 2] * 7 + [128 * 64 * 2] * 7
    assert derived.manifest.page_size == 128


def test_npu_keeps_the_index_with_the_latents() -> None:
    derived = layout(DSA, platform="npu", page_size=128)
    assert [one.kind for one in derived.manifest.stages[0].components] == ["kv"]
    assert [tensor for tensor, _, _ in sizes(derived, "kv")] == ["latent"] * 3 + ["rope"] * 3 + ["index_k"] * 3


def test_block_sparse_index_follows_the_kv_type_only_in_e4m3() -> None:
    sparse = oracle("minimax_m3_sparse")
    index = {
        kind: sizes(layout(sparse, kv_cache_dtype=kind), "minimax_index_k")[0][2]
        for kind in ("bfloat16", "fp8_e4m3", "fp8_e5m2")
    }
    assert index == {"bfloat16": 64 * 128 * 2, "fp8_e4m3": 64 * 128, "fp8_e5m2": 64 * 128 * 2}


def test_index_values_are_refused_where_the_engine_cannot_move_them() -> None:
    sparse = oracle("minimax_m3_sparse")
    part = {**sparse["sparse_attention_config"], "sparse_disable_index_value": [0] * 60}
    with pytest.raises(ConfigError, match="sparse_disable_index_value: layer 3"):
        layout({**sparse, "sparse_attention_config": part})


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_pools_without_a_start_layer_span_all_stages(stages: int) -> None:
    """Nemotron-H and Gemma 4: every stage's pool holds all layers, which the check can then say (PD1020)."""
    derived = layout(GEMMA4, pp=stages)
    assert [stage.components for stage in derived.manifest.stages] == [derived.manifest.stages[0].components] * stages
    assert derived.manifest.stages[-1].layers[1] == 6
    assert any("spans all layers" in text for text in derived.notes)


def test_draft_rides_on_the_last_stage_only() -> None:
    derived = layout(MLA, pp=2, speculative={"algorithm": "EAGLE", "num_steps": 3})
    assert [layer for _, layer, _ in sizes(derived, "kv")] == [0]
    assert [layer for _, layer, _ in sizes(derived, "kv", 1)] == [1, 2, 3]
    assert derived.manifest.speculative == {"algorithm": "EAGLE", "num_steps": 3}


def test_draft_of_its_own_config_keeps_its_own_heads() -> None:
    own = {**LLAMA, "num_hidden_layers": 1, "num_key_value_heads": 8}
    derived = layout(LLAMA, speculative={"algorithm": "EAGLE3", "draft_config": own})
    assert sizes(derived, "kv")[8:] == [("k", 4, 64 * 8 * 64 * 2), ("v", 4, 64 * 8 * 64 * 2)]
    assert derived.manifest.speculative == {"algorithm": "EAGLE3"}


def test_drafts_without_kv_change_nothing() -> None:
    plain = layout(LLAMA).manifest.stages
    assert layout(LLAMA, speculative={"algorithm": "NGRAM"}).manifest.stages == plain
    window = layout(MIMO).manifest.stages
    assert layout(MIMO, speculative={"algorithm": "EAGLE"}).manifest.stages == window


def test_draft_that_is_nowhere_is_said() -> None:
    with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
        layout(LLAMA, speculative={"algorithm": "EAGLE"})
    with pytest.raises(InputError, match="names no algorithm"):
        layout(MLA, speculative={"num_steps": 3})
    with pytest.raises(InputError, match="algorithm TELEPATHY"):
        layout(MLA, speculative={"algorithm": "telepathy"})


@pytest.mark.parametrize(
    ("config", "asked", "page"),
    [
        (LLAMA, {}, 1),
        (LLAMA, {"page_size": 16}, 16),
        (LLAMA, {"platform": "npu"}, 128),
        (LLAMA, {"platform": "sm100"}, 64),
        (LLAMA, {"flags": {"attention-backend": "flashmla"}}, 64),
        (LLAMA, {"platform": "sm100", "page_size": 8}, 64),
        (LLAMA, {"platform": "sm100", "page_size": 32}, 32),
        ({**LLAMA, "v_head_dim": 32}, {"platform": "sm100", "page_size": 32}, 128),
        (MLA, {"platform": "sm100", "page_size": 16}, 64),
        (MLA, {"platform": "sm100", "flags": {"attention-backend": "fa4"}}, 1),
        (DSA, {"page_size": 16}, 64),
        (oracle("qwen4_exp_flash_next"), {"page_size": 32}, 64),
        (oracle("minimax_m3_sparse"), {}, 128),
        (oracle("qwen3_next_80b"), {"platform": "sm100", "role": "prefill"}, 1),
        (oracle("qwen3_next_80b"), {"platform": "sm100", "role": "decode"}, 64),
        (oracle("qwen3_next_80b"), {"platform": "sm100", "page_size": 32}, 32),
    ],
)
def test_page_sizes_that_the_engine_sets_itself(config: dict[str, Any], asked: dict[str, Any], page: int) -> None:
    derived = layout(config, **{"page_size": None, **asked})
    assert derived.manifest.page_size == page
    assert derived.sources["page_size"].text == str(page)


def test_values_say_where_they_come_from() -> None:
    derived = layout(LLAMA, page_size=32, tp=2, origins={"page_size": "fleet.yaml:12", "tp": "fleet.yaml:11"})
    assert derived.sources["page_size"].source == "fleet.yaml:12"
    assert derived.sources["tp"].source == "fleet.yaml:11"
    assert derived.sources["platform"].source == "assumption"
    assert any("hopper is assumed" in text for text in derived.notes)


def test_digest_is_over_geometry_and_nothing_else() -> None:
    """Two copies of a model in different folders, of different library versions, are one model."""
    plain = layout(LLAMA).manifest.model.config_digest
    assert plain is not None
    assert plain.startswith("sha256:")
    same = {**LLAMA, "_name_or_path": "/models/x", "transformers_version": "4.1", "vocab_size": 7, "v_head_dim": None}
    assert layout(same, model_name="other").manifest.model.config_digest == plain
    assert layout({**LLAMA, "num_key_value_heads": 4}).manifest.model.config_digest != plain


def test_nested_language_models_are_found() -> None:
    nested = {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava", "text_config": LLAMA}
    assert layout(nested).manifest.stages == layout(LLAMA).manifest.stages


@pytest.mark.parametrize("name", ["lfm2_1b", "ling_25_1t", "longcat_flash", "hunyuan_large", "nemotron_nas"])
def test_models_whose_pools_were_seen_in_some_engines_are_refused_in_others(name: str) -> None:
    for engine in ("sglang", "vllm"):
        layout(oracle(name), engine=engine)
    with pytest.raises(ConfigError, match=r"whose layout in .*reference.* pdctl does not know"):
        layout(oracle(name), engine="reference")


def test_mamba1_was_seen_in_vllm_alone() -> None:
    derived = layout(oracle("jamba15_mini"), engine="vllm", tp=2, page_size=None)
    assert sizes(derived, "mamba")[0] == ("conv", 0, 24576)
    with pytest.raises(ConfigError, match="attn_layer_period"):
        layout(oracle("jamba15_mini"))


def test_layers_of_short_convolutions_by_either_spelling() -> None:
    """LFM2 names the kind of each layer, or where the attention is; no other state is kept."""
    config = oracle("lfm2_1b")
    places = [place for place, word in enumerate(config["layer_types"]) if word == "full_attention"]
    by_places = {key: value for key, value in config.items() if key != "layer_types"} | {"full_attn_idxs": places}
    assert layout(by_places).manifest.stages == layout(config).manifest.stages
    assert {tensor for tensor, _, _ in sizes(layout(config), "mamba")} == {"conv"}
    assert any("--disable-radix-cache" in note for note in layout(config).notes)
    assert not any("--disable-radix-cache" in note for note in layout(config, page_size=1).notes)
    with pytest.raises(ConfigError, match="num_nextn_predict_layers"):
        layout(config, speculative={"algorithm": "EAGLE"})


@pytest.mark.parametrize("change", [{"kv_lora_rank": None}, {"short_conv_kernel_size": 4}, {"num_hidden_layers": 81}])
def test_other_models_with_groups_of_layers_are_not_known(change: dict[str, Any]) -> None:
    """Ring-linear keeps K and V, Ling-3 a convolution; engines differ in a last group that is cut off."""
    with pytest.raises(ConfigError, match="layer_group_size"):
        layout({**oracle("ling_25_1t"), **change})


def test_two_attentions_a_layer_over_stages_are_not_known() -> None:
    assert layout(oracle("longcat_flash")).manifest.stages[0].layers == (0, 56)
    for engine in ("sglang", "vllm"):
        with pytest.raises(ConfigError, match="2 attentions a layer"):
            layout(oracle("longcat_flash"), pp=2, engine=engine)


def test_blocks_of_unequal_heads_are_not_known() -> None:
    config = oracle("nemotron_nas")
    blocks = [{"attention": {"n_heads_in_group": 8}}, *config["block_configs"][1:]]
    with pytest.raises(ConfigError, match="groups of \\[8, 16\\]"):
        layout({**config, "block_configs": blocks})


def test_hunyuans_own_head_size_alone_does_not_start() -> None:
    config = {key: value for key, value in oracle("hunyuan_large").items() if key != "head_dim"}
    with pytest.raises(ConfigError, match="attention_head_dim: is not 80"):
        layout(config)
