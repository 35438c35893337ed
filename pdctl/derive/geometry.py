"""What a model keeps for a request, in the model's own terms: no engine, no ranks, no pages.

Every family reads its part of a config into one of these values; an engine's derivation turns them into buffers.
Layers are global ids from 0.
"""

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
    draft_layers: int | None = None
    """Layers of the draft model that the checkpoint carries itself; None where the config names none."""

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers that keep K and V or a latent, sliding ones included, in order."""
        return tuple(sorted({*self.full, *(self.sliding.layers if self.sliding else ())}))
