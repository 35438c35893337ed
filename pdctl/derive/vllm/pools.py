"""The pools that vLLM keeps for a model, as its layers' KVCacheSpecs say them: one buffer a layer and kind of state.

Groups, and the allocation that they overlay one another in, shape no page of a layer; a page has the size that its spec
says, padding that belongs to it included.
"""

from math import ceil

from pdctl.derive import buffers
from pdctl.derive.geometry import INDEXED, PLAIN, Compressed, Geometry, Gqa, Mla, Qsa
from pdctl.derive.shapes import Buffer, Pool
from pdctl.derive.vllm import facts
from pdctl.derive.vllm.settings import Settings
from pdctl_transfer.layout.manifest import Group

STATE_ITEMSIZE = 2
"""Convolutions of per-layer embeddings and keys of the compressed index are in the model's 16 bits."""


def pools(geometry: Geometry, settings: Settings, block: int) -> list[Pool]:
    """Every pool of the model, in blocks of `block` tokens."""
    if geometry.compressed is not None:
        return _compressed(geometry, geometry.compressed, settings, block)
    apart = geometry.sliding if settings.hybrid_manager else None
    layers = geometry.full if apart else geometry.attention_layers
    scaled = geometry.index is not None and settings.kv_itemsize == 1
    held = kv(layers, geometry.attention, block, settings, scaled=scaled)
    found = [Pool(kind="kv", index_space="page", buffers=held)]
    if apart is not None:
        window = kv(apart.layers, apart.attention, block, settings)
        found.append(Pool(kind="swa", index_space="window_page", buffers=window))
    if slots := states(geometry, settings):
        found.append(Pool(kind="mamba", index_space="slot", buffers=tuple(one for part in slots for one in part)))
    if (index := geometry.index) is not None:
        with_index = tuple(layer for layer in layers if layer not in index.shared)
        row = facts.index_row(settings.indexer_dtype, index.dim)
        page = buffers.rows("index_k", with_index, 1, block * row)
        found.append(Pool(kind="dsa", index_space="page", buffers=(page,)))
    if (sparse := geometry.sparse) is not None:
        size = 1 if settings.indexer_dtype.startswith("fp8") else STATE_ITEMSIZE
        keys = buffers.rows("index_k", sparse.layers, block, sparse.dim * size)
        found.append(Pool(kind="minimax_index_k", index_space="page", buffers=(keys,)))
    if geometry.qsa is not None:
        found += _qsa(geometry.qsa, settings, block)
    return found


def kv(
    layers: tuple[int, ...], attention: Gqa | Mla, block: int, settings: Settings, *, scaled: bool = False
) -> tuple[Buffer, ...]:
    """K and V of each head together, or the latent; on NPU K and V are regions of their own."""
    if isinstance(attention, Mla):
        if scaled:
            return (buffers.scaled_latent(layers, attention, block),)
        return (buffers.latent(layers, attention, block, settings.kv_itemsize),)
    hnd = settings.layout == "hnd"
    if settings.platform == "npu":
        return buffers.key_value(layers, attention, block, settings.kv_itemsize, hnd=hnd)
    outer, tokens = (1, block) if hnd else (block, 1)
    width = tokens * settings.head_row(attention)
    heads = (Group(attention.kv_heads, 1),)
    return (Buffer(tensor="kv", layers=layers, outer=outer, groups=heads, inner_bytes=width),)


def states(geometry: Geometry, settings: Settings) -> list[tuple[Buffer, ...]]:
    """State of a request by kind of layer: recurrent ones, and the convolution of per-layer embeddings.

    KDA's window is not widened for drafts. The n-gram context is no region in vLLM.
    """
    found: list[tuple[Buffer, ...]] = []
    if (state := geometry.recurrent) is not None:
        found.append(
            buffers.recurrent(
                state,
                window_itemsize=settings.window_itemsize,
                state_itemsize=settings.state_itemsize,
                taps_first=settings.taps_first,
                extra_taps=0 if state.family == "kda" else settings.drafted,
            )
        )
    if geometry.ple is not None:
        window, _ = buffers.ple(geometry.ple, STATE_ITEMSIZE)
        found.append((window,))
    return found


def _qsa(state: Qsa, settings: Settings, block: int) -> list[Pool]:
    """Raw keys of the open group in one block a request, wide enough for drafts; a key a group of each block.

    qwen4_exp/common/qsa_cache.py:844. Positions are no region in vLLM.
    """
    groups = ceil((state.ratio + settings.drafted) / state.ratio)
    width = state.heads * state.dim * STATE_ITEMSIZE
    ring = buffers.rows("pending_k", state.layers, groups * state.ratio, width)
    page = buffers.rows("compressed_k", state.layers, block // state.ratio, width)
    return [
        Pool(kind="qsa_pending", index_space="slot", buffers=(ring,)),
        Pool(kind="qsa_compressed", index_space="page", buffers=(page,)),
    ]


def _compressed(geometry: Geometry, state: Compressed, settings: Settings, block: int) -> list[Pool]:
    """DeepSeek-V4: pages of compressed latents and of their index, of the window, and of what is not compressed yet.

    A compressor keeps two float32 rows a token, K and its weight; those of overlapping groups are twice as wide.
    """
    width = geometry.attention.rank + geometry.attention.rope if isinstance(geometry.attention, Mla) else 0
    row = facts.PACKED_ROW if settings.packed else width * settings.kv_itemsize
    align = facts.PACKED_ALIGNMENT if settings.packed else facts.PLAIN_ALIGNMENT

    def page(tensor: str, layers: tuple[int, ...], count: int, inner: int) -> Buffer:
        return buffers.rows(tensor, layers, 1, -(-count * inner // align) * align)

    indexed, plain = state.of(INDEXED), state.of(PLAIN)
    every = tuple(sorted(geometry.attention_layers))
    index = facts.index_row(settings.indexer_dtype, state.index_dim)
    wide, narrow = facts.STATE_BLOCK[INDEXED], facts.STATE_BLOCK[PLAIN]
    latents = (page("latent", indexed, block // INDEXED, row), page("latent", plain, block // PLAIN, row))
    pending = (
        page("state", indexed, wide, 4 * width * 4),
        page("index_state", indexed, wide, 4 * state.index_dim * 4),
    )
    last = (page("state", plain, narrow, 2 * width * 4),)
    return [
        Pool(kind="kv", index_space="page", buffers=latents),
        Pool(kind="dsa", index_space="page", buffers=(page("index_k", indexed, block // INDEXED, index),)),
        Pool(kind="swa", index_space="window_page", buffers=(page("latent", every, facts.WINDOW_BLOCK, row),)),
        Pool(kind="c4_state", index_space="other", buffers=pending),
        Pool(kind="c128_state", index_space="other", buffers=last),
    ]
