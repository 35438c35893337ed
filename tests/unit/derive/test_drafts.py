"""Draft models by a config of their own: what each engine keeps for them, and what is not known."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.errors import ConfigError, UnknownDraftError
from tests.unit.derive.models import LLAMA, MIMO, MLA, oracle

HEAD = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "num_key_value_heads": 8}
LATENT = {**MLA, "model_type": "k3_dspark", "architectures": ["K3DSparkModel"], "num_hidden_layers": 5}
LATENT_3 = {**LATENT, "num_hidden_layers": 2}


def layout(engine: str, config: dict[str, Any], speculative: dict[str, Any], **asked: Any) -> Derived:
    asked = {"tp": 1, "page_size": 16, **asked}
    return derive(Request(engine=engine, role="prefill", config=config, speculative=speculative, **asked))


def drafts(derived: Derived, layers: int, kind: str = "kv") -> list[tuple[str, int, int]]:
    parts = [part for part in derived.manifest.stages[-1].components if part.kind == kind]
    return [
        (entry.tensor, entry.layer, entry.item_len)
        for part in parts
        for entry in part.entries
        if entry.layer is not None and entry.layer >= layers
    ]


def test_vllm_keeps_the_layers_of_a_speculators_config() -> None:
    """Pages of the draft have its own size where all layers see the whole prompt."""
    nested = {"speculators_model_type": "eagle3", "transformer_layer_config": HEAD}
    derived = layout("vllm", LLAMA, {"method": "eagle3", "model": "x", "draft_config": nested})
    assert drafts(derived, 4) == [("kv", 4, 16 * 8 * (64 + 64) * 2)]


def test_vllm_finds_the_method_by_the_model() -> None:
    derived = layout("vllm", LLAMA, {"model": "x", "num_speculative_tokens": 2, "draft_config": HEAD})
    assert len(drafts(derived, 4)) == 1
    plain = layout("vllm", LLAMA, {"model": "x", "draft_config": {"model_type": "medusa"}})
    assert drafts(plain, 4) == []


def test_vllm_beside_recurrent_layers_takes_rows_of_the_targets_size_only() -> None:
    """Pages of one size are made of all layers: with rows of another size in a way that is not modelled."""
    kimi = oracle("kimi_linear_48b")
    same = layout("vllm", kimi, {"method": "dspark", "model": "x", "draft_config": LATENT_3}, page_size=None)
    assert [layer for _, layer, _ in drafts(same, 27)] == [27, 28]
    with pytest.raises(ConfigError, match="not of the size of the target's"):
        layout("vllm", kimi, {"method": "eagle3", "model": "x", "draft_config": HEAD}, page_size=None)


@pytest.mark.parametrize("key", [{"draft_tensor_parallel_size": 1}, {"kv_cache_dtype": "fp8"}])
def test_vllm_drafts_that_are_cut_or_kept_otherwise_are_not_known(key: dict[str, Any]) -> None:
    spoken = {"method": "eagle3", "model": "x", "draft_config": HEAD}
    with pytest.raises(ConfigError, match=next(iter(key))):
        layout("vllm", LLAMA, {**spoken, **key}, tp=2)


def test_sglang_appends_the_draft_to_the_targets_pool() -> None:
    """All K of the draft after all V of the target; a dense draft beside latents too."""
    derived = layout("sglang", MLA, {"algorithm": "DFLASH", "draft_model_path": "x", "draft_config": HEAD}, tp=2)
    page = 16 * 4 * 64 * 2
    assert drafts(derived, 3) == [("k", 3, page), ("v", 3, page)]


def test_sglang_sends_no_sliding_layers_of_a_draft_with_two_pools() -> None:
    """Of a draft's sliding pool nothing is registered (disaggregation/utils.py of 0.5.23)."""
    derived = layout("sglang", LLAMA, {"algorithm": "STANDALONE", "draft_model_path": "x", "draft_config": MIMO})
    assert [layer for tensor, layer, _ in drafts(derived, 4) if tensor == "k"] == [4, 7]


def test_sglang_cuts_a_dense_draft_over_other_ranks_under_context_parallelism() -> None:
    spoken = {"algorithm": "EAGLE3", "draft_model_path": "x", "draft_config": HEAD}
    with pytest.raises(ConfigError, match="other ranks"):
        layout("sglang", LLAMA, spoken, tp=4, cp=2)


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DSPARK", "DFLASH", "STANDALONE"])
def test_a_draft_that_lies_elsewhere_is_not_the_head_of_the_checkpoint(algorithm: str) -> None:
    """The checkpoint carries a head; these algorithms never use it."""
    with pytest.raises(UnknownDraftError, match="org/Draft"):
        layout("sglang", MLA, {"algorithm": algorithm, "draft_model_path": "org/Draft"})
    with pytest.raises(ConfigError, match="names no draft model"):
        layout("sglang", MLA, {"algorithm": algorithm})


def test_a_head_of_another_checkpoint_is_said_to_be_assumed() -> None:
    derived = layout("sglang", MLA, {"algorithm": "EAGLE", "draft_model_path": "org/NextN"})
    assert any("org/NextN is taken to be the head" in note for note in derived.notes)
    assert len(drafts(derived, 3)) == 1


def test_a_recurrent_draft_is_not_known() -> None:
    spoken = {"algorithm": "STANDALONE", "draft_model_path": "x", "draft_config": oracle("qwen3_next_80b")}
    with pytest.raises(ConfigError, match="state beside its KV"):
        layout("sglang", LLAMA, spoken)
