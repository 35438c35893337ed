"""From a config to a geometry: which families a model has follows from the keys that are there, never from its name."""

from collections.abc import Mapping
from typing import Final

from pdctl.derive.config import Config, digest
from pdctl.derive.families import attention, layers, recurrent, sparse
from pdctl.derive.geometry import Geometry

#: Keys of state that no family here describes. Where one is set, a layout would be a guess.
UNKNOWN_STATE: Final[Mapping[str, str]] = {
    "compress_ratios": "KV compressed by layer (DeepSeek-V4)",
    "attn_config": "attention described by an object of its own (DBRX, MPT)",
    "block_configs": "attention that differs from block to block (Nemotron-NAS)",
    "cross_attention_layers": "cross-attention to an encoder",
    "use_cla": "K and V shared across layers (Hunyuan)",
    "conv_L_cache": "short convolutions without a recurrence (LFM2)",
    "lru_width": "an RG-LRU state (RecurrentGemma)",
    "ssm_cfg": "Mamba-1 state",
    "attn_layer_period": "Mamba-1 layers in a period (Jamba)",
    "attn_layer_indices": "a hybrid pattern by indices (Bamba)",
    "layer_group_size": "linear attention in groups of layers (Bailing)",
    "mb_per_layer": "Mamba layers with a shared memory (SambaY)",
    "local_layer_ids": "local layers by ids (Inkling)",
    "engram_layer_ids": "engram state",
}
#: Keys that say how often layers run; more than once is not understood.
LOOPS: Final = ("loop_num", "num_loops")
#: Prefixes of keys that describe a recurrent state. Without a family that reads them, a layout would leave it out.
RECURRENT_PREFIXES: Final = ("mamba_", "ssm_", "linear_num_", "rwkv", "gla_", "lightning_")

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
    ]
)


def read_geometry(config: Config) -> Geometry:
    """Everything that the model of this config keeps for a request.

    Raises ConfigError, naming the key, where something is missing, contradictory or not understood.
    """
    text = config.text()
    _refuse_unknown(config, text)
    kinds = layers.read(text)
    count = len(kinds.kinds)
    full = kinds.of("full")
    state = recurrent.read(text, kinds.of("linear"), kinds.key)
    if state is None:
        _refuse_unread(text)
    kept = attention.read_full(text)
    return Geometry(
        num_layers=count,
        full=full,
        attention=kept,
        sliding=attention.read_sliding(text, kinds.of("sliding"), kinds.key),
        index=attention.read_index(text, kept, count),
        recurrent=state,
        ple=sparse.read_ple(text, count),
        qsa=sparse.read_qsa(text, full),
        sparse=sparse.read_block_sparse(text, count),
        draft_layers=_draft_layers(text, state is not None),
    )


def config_digest(config: Config) -> str:
    """`sha256:…` over the geometry keys of the language model's part, as canonical JSON."""
    return digest(
        {key: value for key, value in config.text().data.items() if key in GEOMETRY_KEYS and value is not None}
    )


def family(config: Config) -> str | None:
    """`model_type`, which messages show."""
    return config.word("model_type") or config.text().word("model_type")


def _refuse_unknown(config: Config, text: Config) -> None:
    for key, what in UNKNOWN_STATE.items():
        if text.get(key):
            text.fail(key, f"means {what}, whose layout pdctl does not know")
    if text.has("attn_type_list") and 0 in text.sizes("attn_type_list"):
        text.fail("attn_type_list", "names lightning attention (0), whose layout pdctl does not know")
    for key in LOOPS:
        if text.size(key, 1, least=0) > 1:
            text.fail(key, "layers that run more than once are not understood")
    for part in (config, text):
        if part.get("is_encoder_decoder") is True:
            part.fail("is_encoder_decoder", "an encoder-decoder's cross-attention state is not known")


def _refuse_unread(text: Config) -> None:
    """Keys of a recurrent state that no family read."""
    for key, value in text.data.items():
        if isinstance(key, str) and key.startswith(RECURRENT_PREFIXES) and isinstance(value, int) and value > 0:
            text.fail(key, "describes a recurrent state, but no key says which layers have it")


def _draft_layers(config: Config, hybrid: bool) -> int | None:
    """Layers of the draft head in the checkpoint. Hybrids have one, however many steps it is run for."""
    if config.has("num_nextn_predict_layers") and config.size("num_nextn_predict_layers", least=0):
        return 1 if hybrid else config.size("num_nextn_predict_layers", most=64)
    if config.has("mtp_num_hidden_layers") and config.size("mtp_num_hidden_layers", least=0):
        return 1
    return None
