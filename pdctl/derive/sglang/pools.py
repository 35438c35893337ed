"""The pools that SGLang registers for a model, in its order.

All K, then all V; the convolution windows, then the temporal states, then what rides along.
"""

from msgspec.structs import replace

from pdctl.derive import buffers
from pdctl.derive.geometry import Geometry, Gqa, Mla, Qsa
from pdctl.derive.sglang.settings import STATE_ITEMSIZE, Settings
from pdctl.derive.shapes import Buffer, Pool
from pdctl_transfer.layout.manifest import ROPE_RING_LAYER, EnginePairs, IndexSpace


def pools(geometry: Geometry, settings: Settings, *, split_sliding: bool, dense: bool) -> list[Pool]:
    """Every pool of the target model. `split_sliding`: sliding layers apart; `dense`: no block-sparse pools."""
    if geometry.sparse is not None and not dense:
        return _block_sparse(geometry, settings)
    if geometry.sliding is not None and split_sliding:
        full, window = kv_pool(geometry.full, geometry.attention, settings, pairs="position"), geometry.sliding
        swa = kv_pool(window.layers, window.attention, settings, "swa", "window_page", "position")
        return [full, swa, *_scales(full, geometry.attention, settings), *_scales(swa, window.attention, settings)]
    layers = geometry.attention_layers
    found = [kv_pool(layers, geometry.attention, settings)]
    found += _scales(found[0], geometry.attention, settings)
    if geometry.recurrent is not None:
        found.append(_mamba(geometry, settings))
    if geometry.index is not None:
        found = with_index(found, layers, geometry.index.dim, geometry.index.shared, settings)
    if geometry.qsa is not None:
        found += qsa_pools(geometry.qsa, ROPE_RING_LAYER, settings)
    return found


def kv_pool(
    layers: tuple[int, ...],
    attention: Gqa | Mla,
    settings: Settings,
    kind: str = "kv",
    index_space: IndexSpace = "page",
    pairs: EnginePairs = "layer",
) -> Pool:
    """K and V, or the latent, of `layers`."""
    if isinstance(attention, Mla):
        held = _latent(layers, attention, settings)
    else:
        if settings.packed:  # V too has the width of K there
            attention = Gqa(attention.kv_heads, attention.head_dim // 2, attention.head_dim // 2)
        held = buffers.key_value(layers, attention, settings.page_size, settings.kv_itemsize)
    return Pool(kind=kind, index_space=index_space, buffers=held, engine_pairs=pairs)


def _scales(pool: Pool, attention: Gqa | Mla, settings: Settings) -> list[Pool]:
    """MXFP8's block scales of a pool's layers: a component of their own, addressed as the pages are."""
    if settings.kv_dtype != "mxfp8" or not isinstance(attention, Gqa):
        return []
    held = buffers.block_scales(pool.buffers[0].layers, attention, settings.page_size)
    kind = "block_scale" if pool.kind == "kv" else f"block_scale_{pool.kind}"
    return [Pool(kind=kind, index_space=pool.index_space, buffers=held, engine_pairs=pool.engine_pairs)]


def _latent(layers: tuple[int, ...], mla: Mla, settings: Settings) -> tuple[Buffer, ...]:
    """The latent rows; on NPU their two parts are buffers of their own."""
    page, itemsize = settings.page_size, settings.kv_itemsize
    if settings.platform == "npu":
        return (
            buffers.rows("latent", layers, page, mla.rank * itemsize),
            buffers.rows("rope", layers, page, mla.rope * itemsize),
        )
    if settings.scaled_fp8_rows:
        return (buffers.scaled_latent(layers, mla, page),)
    if settings.packed:
        return (buffers.rows("latent", layers, page, (mla.rank + mla.rope) // 2),)
    return (buffers.latent(layers, mla, page, itemsize),)


def with_index(
    found: list[Pool], layers: tuple[int, ...], dim: int, shared: frozenset[int], settings: Settings
) -> list[Pool]:
    """DSA's index: a page packs fp8 keys and one float32 scale for each 128 of their elements.

    On NPU it is plain keys at the end of the KV buffers, in every layer.
    """
    if settings.platform == "npu":
        keys = buffers.rows("index_k", layers, settings.page_size, dim * settings.kv_itemsize)
        return [replace(found[0], buffers=(*found[0].buffers, keys)), *found[1:]]
    page = buffers.rows("index_k", layers, 1, settings.page_size * (dim + dim // 128 * 4))
    return [*found, Pool(kind="dsa", index_space="page", buffers=(replace(page, empty=shared),))]


def _mamba(geometry: Geometry, settings: Settings) -> Pool:
    state = geometry.recurrent
    assert state is not None
    held = buffers.recurrent(
        state,
        window_itemsize=STATE_ITEMSIZE,
        state_itemsize=settings.state_itemsize,
        taps_first=state.taps_first or settings.platform == "npu",
        extra_taps=settings.extra_taps,
        flat=not state.declared,
    )
    riders = buffers.ple(geometry.ple, STATE_ITEMSIZE) if geometry.ple is not None else ()
    return Pool(kind="mamba", index_space="slot", buffers=(*held, *riders))


def qsa_pools(qsa: Qsa, ring: int, settings: Settings) -> list[Pool]:
    """Pending keys and RoPE positions, a row a request; compressed keys, a page. `ring` is the RoPE ring's id."""
    compressed = buffers.qsa_compressed(qsa, settings.page_size, settings.compressed_itemsize)
    return [
        Pool(kind="qsa_pending", index_space="row", buffers=buffers.qsa_pending(qsa, ring, STATE_ITEMSIZE)),
        Pool(kind="qsa_compressed", index_space="page", buffers=(compressed,)),
    ]


def _block_sparse(geometry: Geometry, settings: Settings) -> list[Pool]:
    """Sparse layers' K, V and index keys; the dense layers' K and V as a state of their own."""
    sparse = geometry.sparse
    assert sparse is not None
    index = buffers.rows("index_k", sparse.layers, settings.page_size, sparse.dim * settings.index_itemsize)
    dense = tuple(layer for layer in geometry.full if layer not in set(sparse.layers))
    return [
        kv_pool(sparse.layers, geometry.attention, settings, pairs="position"),
        Pool(kind="minimax_index_k", index_space="page", buffers=(index,), engine_pairs="position"),
        kv_pool(dense, geometry.attention, settings, "minimax_dense_kv", pairs="position"),
    ]
