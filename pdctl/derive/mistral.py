"""Mistral's `params.json`, which engines read where there is no config.json: its keys by the names of the other.

As vLLM 0.32 maps them (transformers_utils/configs/mistral.py); SGLang's reader is one with it for what shapes a buffer.
"""

from collections.abc import Mapping
from typing import Any, Final

#: Its keys, and what the same thing is called in a config.json.
NAMES: Final[Mapping[str, str]] = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "hidden_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
POSITIONS: Final = 128_000
#: Parts that make the language model one of several.
TOWERS: Final = ("multimodal", "vision_encoder")


def is_params(data: Mapping[str, Any]) -> bool:
    """Whether these are the keys of a params.json, whatever the file is called."""
    return "n_layers" in data and "dim" in data and "num_hidden_layers" not in data


def as_config(params: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that engines make of it. Values are left as they are: what reads them checks them."""
    text = {NAMES.get(key, key): value for key, value in params.items() if key not in TOWERS}
    text = {"model_type": "transformer", "max_position_embeddings": POSITIONS, **text, **_windows(text)}
    text["architectures"] = [_architecture(text)]
    if text["architectures"] == ["MistralLarge3ForCausalLM"]:
        text["model_type"] = "deepseek_v3"
    tower = next((params[key] for key in TOWERS if isinstance(params.get(key), Mapping) and params[key]), None)
    if tower is None:
        return text
    name = "Voxtral" if "whisper_model_args" in tower else "Pixtral"
    return {
        "architectures": [f"{name}ForConditionalGeneration"],
        "model_type": name.lower(),
        "text_config": text,
    }


def _architecture(text: Mapping[str, Any]) -> str:
    """Latents, or experts that all tokens share, are Large 3's class; other experts Mixtral's."""
    if text["model_type"] == "mamba":
        return "Mamba2ForCausalLM"
    experts = text.get("moe")
    shared = isinstance(experts, Mapping) and bool(experts.get("num_shared_experts"))
    if shared or (not experts and text.get("qk_nope_head_dim")):
        return "MistralLarge3ForCausalLM"
    return "MixtralForCausalLM" if experts else "MistralForCausalLM"


def _windows(text: Mapping[str, Any]) -> dict[str, Any]:
    """A list of windows is a pattern that repeats; one window is every layer's."""
    window, layers = text.get("sliding_window"), text.get("num_hidden_layers")
    if not window or not isinstance(layers, int) or isinstance(layers, bool) or not 0 < layers <= 4096:
        return {}
    pattern = window if isinstance(window, list) else [window]
    kinds = ["sliding_attention" if one else "full_attention" for one in pattern * (layers // len(pattern))]
    return {"layer_types": kinds, "sliding_window": next((one for one in pattern if one), None)}
