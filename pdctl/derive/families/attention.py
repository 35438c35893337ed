"""Attention that keeps K and V, or one latent row, per token and layer; and DSA's index beside the latent."""

from pdctl.derive.config import Config
from pdctl.derive.geometry import Gqa, Mla, Sliding, SparseIndex

#: Keys that name the number of KV heads, in the order in which engines look.
KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")


def read_full(config: Config) -> Gqa | Mla:
    """The attention of layers that see the whole prompt. Sizes that no use is made of are sizes all the same."""
    if config.has("hidden_size"):
        config.size("hidden_size")
    _refuse_heads(config)
    if config.has("kv_lora_rank"):
        return read_mla(config)
    for key in ("qk_rope_head_dim", "index_topk"):
        if config.has(key):
            config.fail("kv_lora_rank", f"is missing, but {key} is there, which only latent attention has")
    heads, head_dim = kv_heads(config), read_head_dim(config)
    if config.has("global_head_dim"):
        if config.flag("attention_k_eq_v", False):
            heads = config.size("num_global_key_value_heads", heads)
        head_dim = config.size("global_head_dim")
        return Gqa(heads, head_dim, head_dim)
    return Gqa(heads, head_dim, _v_head_dim(config, "v_head_dim", head_dim))


def _refuse_heads(config: Config) -> None:
    """Query heads share KV heads in equal groups, or there are as many."""
    if not config.has("num_attention_heads") or not config.has("num_key_value_heads"):
        return
    heads, kept = config.size("num_attention_heads"), config.size("num_key_value_heads", least=0)
    if kept and heads % kept and not config.has("kv_lora_rank"):
        config.fail("num_key_value_heads", f"found {kept}, which does not divide num_attention_heads {heads}")


def read_mla(config: Config) -> Mla:
    """One row of `kv_lora_rank + qk_rope_head_dim` elements a token."""
    rank = config.size("kv_lora_rank")
    if config.flag("use_mla_nope", False):
        return Mla(rank, 0)
    return Mla(rank, config.size("qk_rope_head_dim"))


def read_sliding(config: Config, layers: tuple[int, ...], key: str | None) -> Sliding | None:
    """Sliding layers may have sizes of their own: in `swa_*` keys, or in the base keys beside `global_*` ones."""
    if not layers:
        return None
    if config.has("swa_kv_lora_rank"):
        config.fail("swa_kv_lora_rank", "sliding layers with a latent are not understood")
    heads, head_dim = kv_heads(config), read_head_dim(config)
    if config.has("attention_other_setting"):
        heads = config.child("attention_other_setting").size("num_attention_groups")
    heads = config.size("swa_num_key_value_heads", heads)
    head_dim = config.size("swa_head_dim", head_dim)
    fallback = head_dim
    if not config.has("swa_head_dim") and not config.has("global_head_dim"):
        fallback = _v_head_dim(config, "v_head_dim", head_dim)
    return Sliding(layers, Gqa(heads, head_dim, _v_head_dim(config, "swa_v_head_dim", fallback)), key or "")


def read_index(config: Config, attention: Gqa | Mla, num_layers: int) -> SparseIndex | None:
    """DSA: an index beside the latent. Layers marked as sharing another's keep an empty place."""
    if not config.has("index_topk") or not isinstance(attention, Mla):
        return None
    if config.size("index_kpool", 1) != 1:
        config.fail("index_kpool", "pooled index keys are not understood")
    dim = config.size("index_head_dim")
    if dim % 128:
        config.fail(
            "index_head_dim", f"found {dim}, expected a multiple of 128: one scale is kept for each 128 elements"
        )
    return SparseIndex(dim, frozenset(layer for layer in range(num_layers) if _shares_index(config, layer)))


def _shares_index(config: Config, layer: int) -> bool:
    """Whether the layer reuses an earlier layer's top-k, in each of the spellings that configs have for it."""
    if config.has("indexer_types"):
        kinds = config.words("indexer_types")
        return layer < len(kinds) and kinds[layer] == "shared"
    if config.size("cli_factor", 1) > 1:
        return layer % config.size("cli_factor") != 0
    if config.has("index_topk_pattern"):
        pattern = config.get("index_topk_pattern")
        if not isinstance(pattern, str):
            pattern = config.words("index_topk_pattern")
        return layer < len(pattern) and pattern[layer] in ("S", "shared")
    every = config.size("index_topk_freq", 1)
    offset = config.size("index_skip_topk_offset", 2)
    return max(layer - offset + 1, 0) % every != 0


def kv_heads(config: Config) -> int:
    """KV heads of the whole model: one for multi-query attention; without a key, as many as query heads."""
    if config.flag("multi_query", False) and not config.flag("new_decoder_architecture", False):
        return 1
    if config.has("block_configs"):
        return _heads_of_blocks(config)
    for key in KV_HEADS:
        if config.has(key):
            return config.size(key)
    return config.size("num_attention_heads")


def _heads_of_blocks(config: Config) -> int:
    """Nemotron-NAS: query heads over those of a group, one for all blocks with attention, or SGLang does not start."""
    heads = config.size("num_attention_heads")
    groups = {block.size("n_heads_in_group") for block in _blocks(config) if not _idle(block)}
    if len(groups) != 1 or heads % min(groups):
        config.fail("block_configs", f"has groups of {sorted(groups)} of {heads} heads, expected one that divides them")
    return heads // groups.pop()


def idle_blocks(config: Config) -> frozenset[int]:
    """Layers of Nemotron-NAS without attention of their own; none of other models."""
    blocks = _blocks(config) if config.get("block_configs") else []
    return frozenset(layer for layer, block in enumerate(blocks) if _idle(block))


def _blocks(config: Config) -> list[Config]:
    """What each layer's block says of its attention."""
    blocks = config.get("block_configs")
    if not isinstance(blocks, list | tuple) or len(blocks) != config.size("num_hidden_layers"):
        config.wrong("block_configs", "expected a list with one object for each layer")
    places = [f"{config.path}block_configs[{place}]" for place in range(len(blocks))]
    parts = [Config({at: block}, config.source).child(at) for at, block in zip(places, blocks, strict=True)]
    return [part.child("attention") for part in parts]


def _idle(block: Config) -> bool:
    return block.flag("no_op", False) or block.flag("replace_with_linear", False)


def read_head_dim(config: Config) -> int:
    """`head_dim`, else the hidden size over the attention heads."""
    for key in ("head_dim", "attention_head_dim"):
        if config.has(key):
            return config.size(key)
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    if hidden % heads:
        config.fail("head_dim", f"is missing, and hidden_size {hidden} does not divide by num_attention_heads {heads}")
    return hidden // heads


def _v_head_dim(config: Config, key: str, default: int) -> int:
    """Zero means the same as the key's absence."""
    return config.size(key, default, least=0) or default
