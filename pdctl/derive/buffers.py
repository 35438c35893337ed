"""Buffers of each state family, shaped as the table of `pdctl.layout/v1` says; element sizes are the engine's."""

from pdctl.derive.geometry import Gqa, Mla, Ple, Qsa, Recurrent
from pdctl.derive.shapes import Buffer
from pdctl_transfer.layout.manifest import NGRAM_LAYER, Group

ONE_HEAD = (Group(heads=1, width=1),)
POSITION_BYTES = 8
"""Token ids and positions are 64-bit in every engine."""
SCALED = 32
"""Elements that share a scale in MXFP8."""
INTERLEAVED_PAGE = 128


def key_value(
    layers: tuple[int, ...], attention: Gqa, page_size: int, itemsize: int, *, hnd: bool = False
) -> tuple[Buffer, ...]:
    """K, then V: pages of `[page_size][kv_heads][width]` (NHD), or `[kv_heads][page_size × width]` (HND)."""
    heads = (Group(attention.kv_heads, 1),)
    outer, tokens = (1, page_size) if hnd else (page_size, 1)
    return tuple(
        Buffer(tensor=tensor, layers=layers, outer=outer, groups=heads, inner_bytes=tokens * width * itemsize)
        for tensor, width in (("k", attention.head_dim), ("v", attention.v_head_dim))
    )


def block_scales(layers: tuple[int, ...], attention: Gqa, page_size: int) -> tuple[Buffer, ...]:
    """MXFP8's scales, a byte for each 32 elements; in pages of 128 tokens a head's lie together, as FA4 reads them."""
    heads = (Group(attention.kv_heads, 1),)
    outer, tokens = (1, page_size) if page_size == INTERLEAVED_PAGE else (page_size, 1)
    return tuple(
        Buffer(tensor=tensor, layers=layers, outer=outer, groups=heads, inner_bytes=tokens * width // SCALED)
        for tensor, width in (("k_scale", attention.head_dim), ("v_scale", attention.v_head_dim))
    )


def rows(tensor: str, layers: tuple[int, ...], page_size: int, inner_bytes: int) -> Buffer:
    """One row a token, the same on every rank: latents, index keys."""
    return Buffer(
        tensor=tensor, layers=layers, outer=page_size, groups=ONE_HEAD, inner_bytes=inner_bytes, sharding="replicated"
    )


def latent(layers: tuple[int, ...], mla: Mla, page_size: int, itemsize: int) -> Buffer:
    """Latent rows of `rank + rope` elements."""
    return rows("latent", layers, page_size, (mla.rank + mla.rope) * itemsize)


def scaled_latent(layers: tuple[int, ...], mla: Mla, page_size: int) -> Buffer:
    """DSA's fp8 latents: a float32 scale for each 128 elements, and a rope part of 16 bits."""
    return rows("latent", layers, page_size, mla.rank + mla.rank // 128 * 4 + mla.rope * 2)


def recurrent(
    state: Recurrent,
    *,
    window_itemsize: int,
    state_itemsize: int,
    taps_first: bool,
    extra_taps: int = 0,
    flat: bool = False,
) -> tuple[Buffer, ...]:
    """The convolution's window, `[taps][channels]` or `[channels][taps]`, and the temporal state: a slot a request.

    Of these what the state has.
    """
    taps = state.taps + extra_taps
    window = Buffer(
        tensor="conv",
        layers=state.layers,
        outer=taps if taps_first else 1,
        groups=state.conv,
        inner_bytes=window_itemsize * (1 if taps_first else taps),
        engine_slices="flat" if flat else "groups",
    )
    temporal = Buffer(
        tensor="temporal",
        layers=state.layers,
        groups=(Group(state.temporal_heads, 1),),
        inner_bytes=state.temporal_elements * state_itemsize,
    )
    return tuple(one for one, held in ((window, state.conv), (temporal, state.temporal_heads)) if held)


def ple(state: Ple, itemsize: int) -> tuple[Buffer, Buffer]:
    """The short convolution's window in its layers, and the request's n-gram context."""
    window = Buffer(
        tensor="ple_short_conv",
        layers=state.layers,
        groups=(Group(1, state.channels),),
        inner_bytes=state.window * itemsize,
        sharding="replicated",
    )
    context = Buffer(
        tensor="ple_ngram",
        layers=state.layers,
        groups=(Group(1, state.context),),
        inner_bytes=POSITION_BYTES,
        sharding="replicated",
        once=NGRAM_LAYER,
    )
    return window, context


def qsa_pending(state: Qsa, ring: int, itemsize: int) -> tuple[Buffer, Buffer]:
    """Keys and positions of the group that is not compressed yet, a row a request; `ring` is the position ring's id."""
    keys = Buffer(
        tensor="pending_k",
        layers=state.layers,
        outer=state.ratio,
        groups=(Group(state.heads, 1),),
        inner_bytes=state.dim * itemsize,
        sharding="replicated",
    )
    positions = Buffer(
        tensor="rope_position",
        layers=state.layers,
        outer=state.ratio,
        groups=(Group(1, 3),),
        inner_bytes=POSITION_BYTES,
        sharding="replicated",
        once=ring,
    )
    return keys, positions


def qsa_compressed(state: Qsa, page_size: int, itemsize: int) -> Buffer:
    """One key for each group of `ratio` tokens of a page."""
    return Buffer(
        tensor="compressed_k",
        layers=state.layers,
        outer=page_size // state.ratio,
        groups=(Group(state.heads, 1),),
        inner_bytes=state.dim * itemsize,
        sharding="replicated",
    )
