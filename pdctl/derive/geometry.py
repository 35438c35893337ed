"""What a model keeps for a request, in the model's own terms: no engine, no ranks, no pages.

Every family reads its part of a config into one of these values; an engine's derivation turns them into buffers.
Layers are global ids from 0.
"""

from typing import Final

from msgspec import Struct

from pdctl_transfer.layout.manifest import Group


class Gqa(Struct, frozen=True):
    """K and V of multi-head, grouped or multi-query attention; widths in elements."""

    kv_heads: int
    head_dim: int
    v_head_dim: int


class Mla(Struct, frozen=True):
    """One latent row a token, the same on every rank: `rank + rope` elements."""

    rank: int
    rope: int


class SparseIndex(Struct, frozen=True):
    """DSA's index beside the latent: `dim` elements a token; `shared` layers reuse another layer's and keep none."""

    dim: int
    shared: frozenset[int]


class Sliding(Struct, frozen=True):
    """Layers that attend within a window, with the geometry they have there."""

    layers: tuple[int, ...]
    attention: Gqa
    key: str
    """The key that tells the layers apart."""


class Recurrent(Struct, frozen=True):
    """One slot a request: the causal convolution's window and the temporal (SSM) state.

    `conv` are the concatenated channel blocks, cut independently; the window is `taps` wide. `taps_first` says that
    the window is the outer axis (`[taps, channels]`), else the inner. `declared` says that the engine is told of the
    blocks; where it is not it cuts the concatenation flat. `temporal_heads` heads of `temporal_elements` each.
    """

    family: str
    layers: tuple[int, ...]
    conv: tuple[Group, ...]
    taps: int
    taps_first: bool
    declared: bool
    temporal_heads: int
    temporal_elements: int
    state_dtype: str | None
    """What the config says of the temporal state; None where it says nothing or the engine does not look."""
    groups_key: str | None = None
    """The key of a group count that the engine refuses to split unevenly."""


class Ple(Struct, frozen=True):
    """Per-layer embeddings: a short convolution's window in some layers, an n-gram context a request."""

    layers: tuple[int, ...]
    channels: int
    window: int
    context: int


class Qsa(Struct, frozen=True):
    """Compressed sparse attention: keys of a group of `ratio` tokens are pending, then compressed into one."""

    layers: tuple[int, ...]
    heads: int
    dim: int
    ratio: int


class BlockSparse(Struct, frozen=True):
    """Block-sparse attention with an index of `dim` elements a token in its layers; the others are dense."""

    layers: tuple[int, ...]
    dim: int


class Compressed(Struct, frozen=True):
    """DeepSeek-V4: every layer keeps the latents of a window; beyond it one latent stands for a group of tokens.

    `ratios`: tokens a group, one number a layer; 0 where there is the window alone. Layers of ratio `INDEXED` also keep
    an index key of `index_dim` elements for each of their groups. The latents' sizes are those of the `Mla` beside it.
    """

    ratios: tuple[int, ...]
    window: int
    index_dim: int

    def of(self, ratio: int) -> tuple[int, ...]:
        """The layers of this ratio."""
        return tuple(layer for layer, found in enumerate(self.ratios) if found == ratio)


INDEXED: Final = 4
"""The ratio whose layers choose among their groups by an index; each group overlaps the one before it."""
PLAIN: Final = 128
"""The ratio whose layers attend to every group."""


class Geometry(Struct, frozen=True, kw_only=True):
    """All that a model keeps. `full` are the layers whose attention sees the whole prompt."""

    num_layers: int
    full: tuple[int, ...]
    attention: Gqa | Mla
    sliding: Sliding | None = None
    index: SparseIndex | None = None
    recurrent: Recurrent | None = None
    ple: Ple | None = None
    qsa: Qsa | None = None
    sparse: BlockSparse | None = None
    compressed: Compressed | None = None
    fold: int = 1
    """Attention layers of one layer that pipeline stages count."""
    draft_layers: int | None = None
    """Layers of the draft model that the checkpoint carries itself; None where the config names none."""

    @property
    def plain(self) -> bool:
        """Whether it keeps nothing but K and V of one size, of the whole prompt."""
        parts = (self.sliding, self.index, self.recurrent, self.ple, self.qsa, self.sparse, self.compressed)
        one = self.attention
        return all(part is None for part in parts) and isinstance(one, Gqa) and one.head_dim == one.v_head_dim

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that keep K and V or a latent, sliding ones included, in order."""
        windowed = self.sliding.layers if self.sliding else self.compressed.of(0) if self.compressed else ()
        return tuple(sorted({*self.full, *windowed}))
