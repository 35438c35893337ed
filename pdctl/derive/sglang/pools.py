"""The buffers that SGLang registers for a model, pool by pool, in its order.

Every shape is a line of the table in `pdctl.layout/v1`; the order is that of the engine's own lists: all K, then all V;
the convolution windows, then the temporal states, then what rides along.
"""

from pdctl.derive.geometry import Geometry, Gqa, Mla, Ple, Qsa, Recurrent
from pdctl.derive.sglang.settings import Settings
from pdctl.derive.shapes import ONE_HEAD, Buffer, Pool
from pdctl_transfer.layout.manifest import NGRAM_LAYER, ROPE_RING_LAYER, EnginePairs, Group, IndexSpace

STATE_ITEMSIZE = 2
"""Convolution windows, PLE and QSA state, whatever the KV dtype."""


def pools(geometry: Geometry, settings: Settings, *, split_sliding: bool, dense: bool) -> list[Pool]:
    """Every pool of the target model. `split_sliding`: sliding layers apart; `dense`: no block-sparse pools."""
    if geometry.sparse is not None and not dense:
        return _block_sparse(geometry, settings)
    if geometry.sliding is not None and split_sliding:
        return [
            kv_pool(geometry.full, geometry.attention, settings, pairs="position"),
            kv_pool(geometry.sliding.layers, geometry.sliding.attention, settings, "swa", "window_page", "position"),
        ]
    layers = sorted({*geometry.full, *(geometry.sliding.layers if geometry.sliding else ())})
    found = [kv_pool(tuple(layers), geometry.attention, settings)]
    if geometry.recurrent is not None:
        found.append(_mamba(geometry.recurrent, geometry.ple, settings))
    if geometry.index is not None:
        found.append(index_pool(tuple(layers), geometry.index.dim, geometry.index.shared, settings))
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
        buffers: tuple[Buffer, ...] = _latent(layers, attention, settings)
    else:
        buffers = key_value(layers, attention, settings.page_size, settings.kv_itemsize)
    return Pool(kind=kind, index_space=index_space, buffers=buffers, engine_pairs=pairs)


def key_value(layers: tuple[int, ...], attention: Gqa, page_size: int, itemsize: int) -> tuple[Buffer, ...]:
    """K then V, a page of `[page_size][kv_heads][width]` each."""
    heads = (Group(attention.kv_heads, 1),)
    return tuple(
        Buffer(tensor=tensor, layers=layers, outer=page_size, groups=heads, inner_bytes=width * itemsize)
        for tensor, width in (("k", attention.head_dim), ("v", attention.v_head_dim))
    )


def _latent(layers: tuple[int, ...], mla: Mla, settings: Settings) -> tuple[Buffer, ...]:
    """The latent row; on NPU its two parts are buffers of their own."""

    def row(tensor: str, inner_bytes: int) -> Buffer:
        return Buffer(
            tensor=tensor,
            layers=layers,
            outer=settings.page_size,
            groups=ONE_HEAD,
            inner_bytes=inner_bytes,
            sharding="replicated",
        )

    if settings.platform == "npu":
        return (row("latent", mla.rank * settings.kv_itemsize), row("rope", mla.rope * settings.kv_itemsize))
    if settings.scaled_fp8_rows:
        return (row("latent", mla.rank + mla.rank // 128 * 4 + mla.rope * 2),)
    return (row("latent", (mla.rank + mla.rope) * settings.kv_itemsize),)


def index_pool(layers: tuple[int, ...], dim: int, shared: frozenset[int], settings: Settings) -> Pool:
    """DSA's index: a page packs fp8 keys and one float32 scale for each 128 of their elements."""
    page = Buffer(
        tensor="index_k",
        layers=layers,
        groups=ONE_HEAD,
        inner_bytes=settings.page_size * (dim + dim // 128 * 4),
        sharding="replicated",
        empty=shared,
    )
    return Pool(kind="dsa", index_space="page", buffers=(page,))


def _mamba(state: Recurrent, ple: Ple | None, settings: Settings) -> Pool:
    taps_first = state.taps_first or settings.platform == "npu"
    conv = Buffer(
        tensor="conv",
        layers=state.layers,
        outer=state.taps if taps_first else 1,
        groups=state.conv,
        inner_bytes=STATE_ITEMSIZE if taps_first else state.taps * STATE_ITEMSIZE,
        engine_slices="groups" if state.declared else "flat",
    )
    temporal = Buffer(
        tensor="temporal",
        layers=state.layers,
        groups=(Group(state.temporal_heads, 1),),
        inner_bytes=state.temporal_elements * settings.state_itemsize,
    )
    riders = _ple(ple) if ple is not None else ()
    return Pool(kind="mamba", index_space="slot", buffers=(conv, temporal, *riders))


def _ple(ple: Ple) -> tuple[Buffer, ...]:
    return (
        Buffer(
            tensor="ple_short_conv",
            layers=ple.layers,
            groups=(Group(1, ple.channels),),
            inner_bytes=ple.window * STATE_ITEMSIZE,
            sharding="replicated",
        ),
        Buffer(
            tensor="ple_ngram",
            layers=ple.layers,
            groups=(Group(1, ple.context),),
            inner_bytes=8,
            sharding="replicated",
            once=NGRAM_LAYER,
        ),
    )


def qsa_pools(qsa: Qsa, ring: int, settings: Settings) -> list[Pool]:
    """Pending keys and RoPE positions, a row a request; compressed keys, a page. `ring` is the RoPE ring's id."""
    keys = (Group(qsa.heads, 1),)
    width = qsa.dim * STATE_ITEMSIZE
    pending = Buffer(
        tensor="pending_k",
        layers=qsa.layers,
        outer=qsa.ratio,
        groups=keys,
        inner_bytes=width,
        sharding="replicated",
    )
    positions = Buffer(
        tensor="rope_position",
        layers=qsa.layers,
        outer=qsa.ratio,
        groups=(Group(1, 3),),
        inner_bytes=8,
        sharding="replicated",
        once=ring,
    )
    compressed = Buffer(
        tensor="compressed_k",
        layers=qsa.layers,
        outer=settings.page_size // qsa.ratio,
        groups=keys,
        inner_bytes=width,
        sharding="replicated",
    )
    return [
        Pool(kind="qsa_pending", index_space="row", buffers=(pending, positions)),
        Pool(kind="qsa_compressed", index_space="page", buffers=(compressed,)),
    ]


def _block_sparse(geometry: Geometry, settings: Settings) -> list[Pool]:
    """Sparse layers' K, V and index keys; the dense layers' K and V as a state of their own."""
    sparse = geometry.sparse
    assert sparse is not None
    index = Buffer(
        tensor="index_k",
        layers=sparse.layers,
        outer=settings.page_size,
        groups=ONE_HEAD,
        inner_bytes=sparse.dim * settings.index_itemsize,
        sharding="replicated",
    )
    dense = tuple(layer for layer in geometry.full if layer not in set(sparse.layers))
    return [
        kv_pool(sparse.layers, geometry.attention, settings, pairs="position"),
        Pool(kind="minimax_index_k", index_space="page", buffers=(index,), engine_pairs="position"),
        kv_pool(dense, geometry.attention, settings, "minimax_dense_kv", pairs="position"),
    ]
