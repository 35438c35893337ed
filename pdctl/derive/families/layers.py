"""What kind each layer is: the pattern of a hybrid model, from whichever key spells it."""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from pdctl.derive.config import MAX_LAYERS, Config

Kind = Literal["full", "sliding", "linear", "none"]

#: Words of `layer_types` and `layers_block_type`. What is not here is not understood.
WORDS: Final[Mapping[str, Kind]] = {
    "full_attention": "full",
    "attention": "full",
    "qwen_sparse_attention": "full",
    "indexed_attention": "full",
    "minimax_m3_sparse": "full",
    "deepseek_sparse_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "conv": "linear",
    "short_conv": "linear",
    "moe": "none",
    "mlp": "none",
}
#: Letters of `hybrid_override_pattern`.
LETTERS: Final[Mapping[str, Kind]] = {"M": "linear", "*": "full", "-": "none", "E": "none"}
#: Numbers of `hybrid_layer_pattern`.
FLAGS: Final[Mapping[int, Kind]] = {0: "full", 1: "sliding"}


#: Keys other than `layer_types` that say which kind a layer is.
PATTERNS: Final = (
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_attn_config",
    "hybrid_layer_pattern",
    "global_head_dim",
    "full_attention_interval",
    "sliding_window_pattern",
    "attention_chunk_size",
    "no_rope_layers",
    "layer_group_size",
    "full_attn_idxs",
    "attn_layer_period",
)


class LayerKinds(Struct, frozen=True):
    """One kind a layer, and the key that said so (None: every layer is full attention)."""

    kinds: tuple[Kind, ...]
    key: str | None

    def of(self, *wanted: Kind) -> tuple[int, ...]:
        """The layers of these kinds."""
        return tuple(layer for layer, kind in enumerate(self.kinds) if kind in wanted)


def read(config: Config) -> LayerKinds:
    """The kind of every layer. A pattern that does not cover the layers, or a word of no known meaning, is refused."""
    if config.has("hybrid_override_pattern"):
        return _letters(config)
    if config.has("layers_block_type"):
        words = config.words("layers_block_type")
        if not words:
            config.fail("layers_block_type", "is empty")
        return _words(config, "layers_block_type", len(words))
    count = counted(config)
    if config.has("layer_group_size"):
        return _grouped(config, count)
    if config.has("attn_layer_period"):
        every, first = config.size("attn_layer_period", most=MAX_LAYERS), config.size("attn_layer_offset", least=0)
        return LayerKinds(
            tuple("full" if layer % every == first else "linear" for layer in range(count)), "attn_layer_period"
        )
    if config.has("full_attn_idxs") and not config.has("layer_types"):
        full = set(config.sizes("full_attn_idxs"))
        return LayerKinds(tuple("full" if layer in full else "linear" for layer in range(count)), "full_attn_idxs")
    if config.has("linear_attn_config"):
        return _kda(config, count)
    if config.has("hybrid_layer_pattern"):
        flags = config.sizes("hybrid_layer_pattern", length=count)
        if bad := next((flag for flag in flags[:count] if flag not in FLAGS), None):
            config.fail("hybrid_layer_pattern", f"found {bad}, expected 0 (full) or 1 (sliding)")
        return LayerKinds(tuple(FLAGS[flag] for flag in flags[:count]), "hybrid_layer_pattern")
    if config.has("global_head_dim"):
        return _last_is_full(config, count)
    if config.has("layer_types"):
        kinds = _words(config, "layer_types", count)
        _agree(config, kinds)
        return kinds
    if config.has("full_attention_interval"):
        return _interval(config, count)
    if config.has("sliding_window_pattern") and config.has("sliding_window"):
        every = config.size("sliding_window_pattern", most=MAX_LAYERS)
        return LayerKinds(_every(every, count), "sliding_window_pattern")
    if config.has("attention_chunk_size"):
        return _chunked(config, count)
    plain: tuple[Kind, ...] = ("full",)
    return LayerKinds(plain * count, None)


def counted(config: Config) -> int:
    """Attention layers. LongCat-Flash counts in `num_layers`, each with two attentions beside its zero experts."""
    if fold(config) == 1:
        return config.size("num_hidden_layers", most=MAX_LAYERS)
    key = "num_hidden_layers" if config.has("num_hidden_layers") else "num_layers"
    return 2 * config.size(key, most=MAX_LAYERS // 2)


def fold(config: Config) -> int:
    """Attention layers of each layer that the config counts."""
    return 2 if config.has("zero_expert_num") and config.has("kv_lora_rank") else 1


def _grouped(config: Config, count: int) -> LayerKinds:
    """Bailing (Ling-2.5): the last layer of each group is full attention; engines differ in a group that is cut off."""
    every = config.size("layer_group_size", most=MAX_LAYERS)
    if count % every:
        config.fail("layer_group_size", f"found {every}, which cuts off the last of {count} layers' groups")
    return LayerKinds(
        tuple("full" if (layer + 1) % every == 0 else "linear" for layer in range(count)), "layer_group_size"
    )


def _letters(config: Config) -> LayerKinds:
    pattern = config.word("hybrid_override_pattern") or ""
    if not 0 < len(pattern) <= MAX_LAYERS:
        config.fail("hybrid_override_pattern", f"has {len(pattern)} letters, expected 1 to {MAX_LAYERS}")
    if bad := next((letter for letter in pattern if letter not in LETTERS), None):
        config.fail("hybrid_override_pattern", f"found {bad!r}, expected one of {' '.join(LETTERS)}")
    return LayerKinds(tuple(LETTERS[letter] for letter in pattern), "hybrid_override_pattern")


def _words(config: Config, key: str, count: int) -> LayerKinds:
    words = config.words(key, length=count)[:count]
    if bad := next((word for word in words if word not in WORDS), None):
        config.fail(key, f"found {bad!r}, expected one of {', '.join(sorted(WORDS))}")
    return LayerKinds(tuple(WORDS[word] for word in words), key)


def _last_is_full(config: Config, count: int) -> LayerKinds:
    """With a global head size the last layer is full attention whatever is said, and by default every 6th is."""
    kinds = _words(config, "layer_types", count).kinds if config.has("layer_types") else _every(6, count)
    if kinds[-1] == "sliding":
        kinds = (*kinds[:-1], "full")
    return LayerKinds(kinds, "layer_types")


def _every(period: int, count: int) -> tuple[Kind, ...]:
    """Full attention every `period` layers, sliding windows between."""
    return tuple("sliding" if (layer + 1) % period else "full" for layer in range(count))


def _interval(config: Config, count: int) -> LayerKinds:
    every = config.size("full_attention_interval", most=MAX_LAYERS)
    return LayerKinds(
        tuple("full" if (layer + 1) % every == 0 else "linear" for layer in range(count)), "full_attention_interval"
    )


def _agree(config: Config, kinds: LayerKinds) -> None:
    """Engines read one or the other of the two spellings: they must not contradict each other."""
    if not config.has("full_attention_interval") or "linear" not in kinds.kinds:
        return
    if _interval(config, len(kinds.kinds)).kinds != kinds.kinds:
        config.fail("layer_types", "contradicts full_attention_interval, and engines differ in which they read")


def _chunked(config: Config, count: int) -> LayerKinds:
    """Llama 4: layers with rotary positions attend within a chunk, those without see the whole prompt."""
    if not config.get("no_rope_layers"):
        return LayerKinds(
            _every(config.size("no_rope_layer_interval", 4, most=MAX_LAYERS), count), "attention_chunk_size"
        )
    rotary = config.sizes("no_rope_layers", length=count)
    kinds: list[Kind] = ["sliding" if flag else "full" for flag in rotary[:count]]
    return LayerKinds(tuple(kinds), "no_rope_layers")


def _kda(config: Config, count: int) -> LayerKinds:
    """`kda_layers` counts from 1; what it does not name is full attention. A draft's layers may follow the model's."""
    part = config.child("linear_attn_config")
    linear = {layer - 1 for layer in part.sizes("kda_layers", least=1)}
    if part.has("full_attn_layers"):
        both = linear & {layer - 1 for layer in part.sizes("full_attn_layers", least=1)}
        if both:
            part.fail("full_attn_layers", f"names layer {min(both) + 1}, and so does kda_layers")
    return LayerKinds(
        tuple("linear" if layer in linear else "full" for layer in range(count)), "linear_attn_config.kda_layers"
    )
