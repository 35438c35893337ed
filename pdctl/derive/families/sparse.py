"""State beside the KV cache: per-layer embeddings, compressed sparse attention (QSA), block-sparse attention."""

from pdctl.derive.config import Config
from pdctl.derive.geometry import BlockSparse, Ple, Qsa


def read_ple(config: Config, num_layers: int) -> Ple | None:
    """`ple_layer_ids` counts from 1. The window holds `(kernel - 1) * ngram_size` positions of all hidden streams."""
    if not config.get("ple_layer_ids"):
        return None
    layers = tuple(sorted({layer - 1 for layer in config.sizes("ple_layer_ids", least=1)}))
    if layers[-1] >= num_layers:
        config.fail("ple_layer_ids", f"names layer {layers[-1] + 1} of {num_layers}")
    ngram = config.size("ngram_size")
    return Ple(
        layers=layers,
        channels=config.size("hidden_size") * config.size("hc_count"),
        window=(config.size("ple_conv_kernel_size", least=2) - 1) * ngram,
        context=ngram - 1,
    )


def read_qsa(config: Config, layers: tuple[int, ...]) -> Qsa | None:
    """The compressed indexer of the full-attention `layers`, or of those that `indexer_layer_ids` names."""
    if not config.has("indexer_n_heads") and not config.has("indexer_compress_ratio"):
        return None
    ratio = config.size("indexer_compress_ratio", least=2)
    if config.has("indexer_layer_ids"):
        named = config.sizes("indexer_layer_ids")
        if strange := sorted(set(named) - set(layers)):
            config.fail("indexer_layer_ids", f"names layer {strange[0]}, which is not full attention")
        layers = tuple(sorted(set(named)))
    return Qsa(layers, config.size("indexer_kv_heads"), config.size("indexer_head_dim"), ratio)


def read_block_sparse(config: Config, num_layers: int) -> BlockSparse | None:
    """MiniMax: `sparse_attention_freq` marks sparse layers, whose index keys are kept; index values are refused."""
    if not config.has("sparse_attention_config"):
        return None
    part = config.child("sparse_attention_config")
    if not part.flag("use_sparse_attention", True):
        return None
    marks = part.sizes("sparse_attention_freq", length=num_layers)[:num_layers]
    layers = tuple(layer for layer, mark in enumerate(marks) if mark)
    if part.has("sparse_disable_index_value"):
        keyed = part.sizes("sparse_disable_index_value", length=num_layers)
        with_values = [layer for layer in layers if not keyed[layer]]
    else:
        with_values = list(layers)
    if with_values:
        part.fail(
            "sparse_disable_index_value",
            f"layer {with_values[0]} keeps index values, which SGLang does not transfer between prefill and decode",
        )
    return BlockSparse(layers, part.size("sparse_index_dim"))
