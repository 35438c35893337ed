"""What a config.json leaves out is what the model's own class takes, and said; never the hidden size over the heads."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl_transfer.layout.manifest import Entry

GEMMA: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {"hidden_size": 3840, "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 12},
    "torch_dtype": "bfloat16",
}
QWEN: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 2,
    "torch_dtype": "bfloat16",
}


def derived(config: dict[str, Any], engine: str = "sglang") -> Derived:
    return derive(Request(engine=engine, role="decode", config=config, page_size=1))


def entries(found: Derived, kind: str = "kv") -> list[Entry]:
    return [entry for part in found.manifest.stages[0].components if part.kind == kind for entry in part.entries]


@pytest.mark.parametrize("named", [True, False])
def test_a_head_size_that_the_class_has(named: bool) -> None:
    """Gemma-3-12B's form: 240 by division, 256 by the class, whether or not the nested part names its own type."""
    text = {**GEMMA["text_config"], **({"model_type": "gemma3_text"} if named else {})}
    found = derived({**GEMMA, "text_config": text})
    assert {entry.item_len for entry in entries(found)} == {8 * 256 * 2}
    assert any("head_dim 256" in note and "gemma3_text" in note for note in found.notes)
    stated = derived({**GEMMA, "text_config": {**text, "head_dim": 128, "layer_types": ["full_attention"] * 12}})
    assert {entry.item_len for entry in entries(stated)} == {8 * 128 * 2}
    assert not any("left out" in note for note in stated.notes)


def test_heads_that_the_class_has() -> None:
    """Gemma-3-4B's form: a nested part is written as the difference from its class, heads and layers included."""
    found = derived({**GEMMA, "text_config": {"hidden_size": 2560, "num_hidden_layers": 34}})
    assert {entry.item_len for entry in entries(found)} == {4 * 256 * 2}
    assert len(entries(derived({**GEMMA, "text_config": {"hidden_size": 1152}}))) == 2 * 26


def test_which_layers_have_windows_is_the_class_s_too() -> None:
    """Every 6th of Gemma-3's layers sees the whole prompt; vLLM keeps the others apart."""
    found = derived(GEMMA, "vllm")
    assert sorted(entry.layer or 0 for entry in entries(found)) == [5, 11]
    assert len(entries(found, "swa")) == 10
    windowless = {**GEMMA, "text_config": {**GEMMA["text_config"], "sliding_window": None}}
    assert not entries(derived(windowless, "vllm"), "swa")


def test_a_flat_config_takes_head_sizes_from_its_class() -> None:
    """Qwen3's 128 is no division: 2560 over 32 is 80. Null is what it says, and no absence."""
    assert {entry.item_len for entry in entries(derived(QWEN))} == {8 * 128 * 2}
    assert {entry.item_len for entry in entries(derived({**QWEN, "head_dim": None}))} == {8 * 80 * 2}


def test_what_divides_in_its_class_still_divides() -> None:
    """Llama's class takes the hidden size over the heads, and as many KV heads as query heads."""
    llama = {**QWEN, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    assert {entry.item_len for entry in entries(derived(llama))} == {8 * 80 * 2}
    del llama["num_key_value_heads"]
    found = derived(llama)
    assert {entry.item_len for entry in entries(found)} == {32 * 80 * 2}
    assert not any("left out" in note for note in found.notes)


def test_a_type_that_transformers_does_not_have_is_noted_where_something_is_assumed() -> None:
    """With every key there nothing is assumed, so there is nothing to say."""
    own = {**QWEN, "model_type": "own"}
    [note] = [note for note in derived(own).notes if "transformers" in note]
    assert "model_type own" in note
    assert "head_dim" in note
    assert not [note for note in derived({**own, "head_dim": 80}).notes if "transformers" in note]


def test_a_state_that_only_the_class_names_is_refused_like_any_other() -> None:
    """Jamba's period of attention layers need not be in its config: no layout without its Mamba-1 state."""
    from pdctl.errors import ConfigError

    with pytest.raises(ConfigError, match="attn_layer_period"):
        derived({**QWEN, "model_type": "jamba", "architectures": ["JambaForCausalLM"]})
