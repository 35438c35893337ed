"""From a config to a geometry: which families a model has follows from the keys that are there, never from its name."""

from collections.abc import Mapping
from typing import Final

from pdctl.derive.config import Config
from pdctl.derive.defaults import filled
from pdctl.derive.families import attention, compressed, layers, recurrent, sparse
from pdctl.derive.geometry import Geometry
from pdctl.versions import SHOWN
from pdctl_transfer.layout import digest

#: Keys of state that no family here describes. Where one is set, a layout would be a guess.
UNKNOWN_STATE: Final[Mapping[str, str]] = {
    "attn_config": "attention described by an object of its own (DBRX, MPT)",
    "cross_attention_layers": "cross-attention to an encoder",
    "lru_width": "an RG-LRU state (RecurrentGemma)",
    "ssm_cfg": "Mamba-1 state",
    "attn_layer_indices": "a hybrid pattern by indices (Bamba)",
    "mb_per_layer": "Mamba layers with a shared memory (SambaY)",
    "local_layer_ids": "local layers by ids (Inkling)",
    "engram_layer_ids": "engram state",
}
BOTH: Final = ("sglang", "vllm")
#: Keys of state that was seen in the pools of some engines alone: what it is, and in which.
SEEN_IN: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "block_configs": ("attention that differs from block to block (Nemotron-NAS)", BOTH),
    "use_cla": ("K and V shared across layers (Hunyuan)", BOTH),
    "conv_L_cache": ("short convolutions without a recurrence (LFM2)", BOTH),
    "layer_group_size": ("linear attention in groups of layers (Bailing)", BOTH),
    "zero_expert_num": ("two attentions a layer (LongCat-Flash)", BOTH),
    "attn_layer_period": ("Mamba-1 layers in a period (Jamba)", ("vllm",)),
}
#: Keys that say how often layers run; more than once is not understood.
LOOPS: Final = ("loop_num", "num_loops")
#: Prefixes of keys that describe a recurrent state. Without a family that reads them, a layout would leave it out.
RECURRENT_PREFIXES: Final = ("mamba_", "ssm_", "linear_num_", "rwkv", "gla_", "lightning_")


def read_geometry(config: Config, engine: str) -> Geometry:
    """Everything that the model of this config keeps for a request in this engine.

    Raises ConfigError, naming the key, where something is missing, contradictory or not understood.
    """
    text = filled(config)
    _refuse_unknown(config, text, engine)
    kinds = layers.read(text)
    count = len(kinds.kinds)
    full = kinds.of("full")
    state = recurrent.read(text, kinds.of("linear"), kinds.key)
    if state is None:
        _refuse_unread(text)
    if engine == "vllm":  # SGLang keeps pages for blocks without attention too
        full = tuple(layer for layer in full if layer not in attention.idle_blocks(text))
    squeezed = compressed.read_compressed(text, count)
    kept = compressed.read_latent(text) if squeezed else attention.read_full(text)
    return Geometry(
        num_layers=count,
        full=tuple(layer for layer in full if squeezed is None or squeezed.ratios[layer]),
        attention=kept,
        sliding=attention.read_sliding(text, kinds.of("sliding"), kinds.key),
        index=None if squeezed else attention.read_index(text, kept, count),
        recurrent=state,
        ple=sparse.read_ple(text, count),
        qsa=sparse.read_qsa(text, full),
        sparse=sparse.read_block_sparse(text, count),
        compressed=squeezed,
        fold=layers.fold(text),
        draft_layers=_draft_layers(text, state is not None),
    )


def config_digest(config: Config) -> str:
    """`sha256:…` over the geometry keys of the language model's part, as the engines' plugin takes it."""
    return digest.geometry_digest(config.data)


def values_digest(config: Config) -> str:
    """`sha256:…` over what the numbers in equal buffers depend on, overrides included."""
    return digest.values_digest(config.data)


def family(config: Config) -> str | None:
    """`model_type`, which messages show."""
    return config.word("model_type") or config.text().word("model_type")


def _refuse_unknown(config: Config, text: Config, engine: str) -> None:
    for key, what in UNKNOWN_STATE.items():
        if text.get(key):
            text.fail(key, f"means {what}, whose layout pdctl does not know")
    for key, (what, engines) in SEEN_IN.items():
        if text.get(key) and engine not in engines:
            text.fail(key, f"means {what}, whose layout in {SHOWN.get(engine, engine)} pdctl does not know")
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
