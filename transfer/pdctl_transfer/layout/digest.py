"""Which model a layout belongs to: a digest over the keys of its config that shape buffers.

It stands in the transfer core because both take it: pdctl from a config.json before anything starts, and the plugin
inside the engines, which tells two models of one name apart, and one model under two names together.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

#: Where multimodal configs keep the language model, in the order in which engines look.
NESTED: Final = ("thinker_config", "llm_config", "language_config", "text_config")

#: What the digest is taken over: keys that shape a buffer. Paths, versions, tokens and weights do not.
GEOMETRY_KEYS: Final = frozenset(
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "n_head_kv",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
        "multi_query",
        "new_decoder_architecture",
        "head_dim",
        "attention_head_dim",
        "v_head_dim",
        "swa_num_key_value_heads",
        "swa_head_dim",
        "swa_v_head_dim",
        "attention_other_setting",
        "global_head_dim",
        "num_global_key_value_heads",
        "layer_types",
        "layers_block_type",
        "hybrid_override_pattern",
        "hybrid_layer_pattern",
        "full_attention_interval",
        "attention_k_eq_v",
        "sliding_window",
        "sliding_window_pattern",
        "use_sliding_window",
        "kv_lora_rank",
        "qk_rope_head_dim",
        "use_mla_nope",
        "index_topk",
        "index_head_dim",
        "index_kpool",
        "indexer_types",
        "cli_factor",
        "index_topk_pattern",
        "index_topk_freq",
        "index_skip_topk_offset",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "linear_attn_config",
        "linear_num_heads",
        "linear_head_dim",
        "mamba_ssm_dtype",
        "mamba_num_heads",
        "mamba_head_dim",
        "n_groups",
        "mamba_n_groups",
        "ssm_state_size",
        "conv_kernel",
        "mamba_d_conv",
        "mamba_n_heads",
        "mamba_d_head",
        "mamba_d_ssm",
        "mamba_d_state",
        "mamba_expand",
        "ple_layer_ids",
        "ngram_size",
        "hc_count",
        "ple_conv_kernel_size",
        "indexer_n_heads",
        "indexer_kv_heads",
        "indexer_head_dim",
        "indexer_compress_ratio",
        "indexer_layer_ids",
        "sparse_attention_config",
        "compress_ratios",
        "num_layers",
        "zero_expert_num",
        "full_attn_idxs",
        "conv_L_cache",
        "layer_group_size",
        "use_cla",
        "block_configs",
        "attn_layer_period",
        "attn_layer_offset",
    ]
)


def geometry_digest(config: Mapping[str, Any]) -> str:
    """`sha256:…` over the geometry keys of the language model's part of a config.json, as canonical JSON."""
    for key in NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return geometry_digest(inner)
    values = {key: value for key, value in config.items() if key in GEOMETRY_KEYS and value is not None}
    data = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(data.encode()).hexdigest()


#: What the second digest leaves out: names, paths, versions, tokens, training, limits, and what has a rule of its own.
#: Weights may be quantised differently on the two sides; what they compute is the same to within that.
WORTHLESS_KEYS: Final = frozenset(
    [
        "architectures",
        "auto_map",
        "dtype",
        "torch_dtype",
        "initializer_range",
        "max_position_embeddings",
        "model_type",
        "num_nextn_predict_layers",
        "pad_vocab_size_multiple",
        "quantization_config",
        "compression_config",
        "tie_word_embeddings",
        "transformers_version",
        "use_cache",
        "vocab_size",
    ]
)
WORTHLESS_PARTS: Final = (
    "_name_or_path",
    "path",
    "version",
    "token",
    "dropout",
    "loss",
    "output_",
    "_attn_implementation",
)


def values_digest(config: Mapping[str, Any]) -> str:
    """`sha256:…` over what the numbers in equal buffers depend on: rotary, scaling, softcap, norms, and all else.

    Taken over the language model's part, without `GEOMETRY_KEYS`, which have a digest of their own.
    """
    for key in NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            return values_digest(inner)
    values = {key: value for key, value in config.items() if value is not None and _counts(key)}
    data = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return "sha256:" + hashlib.sha256(data.encode()).hexdigest()


def _counts(key: str) -> bool:
    return key not in GEOMETRY_KEYS | WORTHLESS_KEYS and not any(part in key for part in WORTHLESS_PARTS)


def folder_digests(folder: str, overrides: Mapping[str, Any] | None = None) -> tuple[str | None, str | None]:
    """Both digests of the config.json in a model's folder, under these overrides; None where none can be read."""
    try:
        config = json.loads((Path(folder) / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None, None
    if not isinstance(config, dict):
        return None, None
    config = merged(config, overrides or {})
    return geometry_digest(config), values_digest(config)


def merged(config: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The config with values put over it, as engines do with their overrides: object by object."""
    found = dict(config)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return found
