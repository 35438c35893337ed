"""Latent attention (MLA) over pages of one latent and one rotary key a token, replicated on every rank.

Queries are taken into the latent's space (DeepSeek-V2, section 2.1.2, absorbed form), so what attention reads are the
pages themselves: the latent, shared by all heads, and the rotary key beside it, each in a buffer of its own.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from pdctl.engines.reference.config import Mla, ModelConfig
from pdctl.engines.reference.layers.attention import GAIN, grouped_attention
from pdctl.engines.reference.layers.norm import Norm
from pdctl.engines.reference.layers.rope import frequencies, rotate
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Shard, Weights


class LatentLayer:
    """One rank's query heads."""

    def __init__(self, config: ModelConfig, geometry: Mla, layer: int, weights: Weights, shard: Shard) -> None:
        name, heads, hidden = f"layers.{layer}.latent", geometry.heads, config.hidden
        self._geometry = geometry
        self._heads = len(shard.heads(heads))
        self._q = shard.rows(
            weights.normal(f"{name}.q", heads * (geometry.nope_dim + geometry.rope_dim), hidden), heads
        )
        self._down = weights.normal(f"{name}.down", geometry.rank + geometry.rope_dim, hidden)
        self._norm = Norm(weights.near_one(f"{name}.norm", geometry.rank), config.eps)
        self._key_up = self._by_head(shard, weights, f"{name}.key_up", geometry.nope_dim)
        self._value_up = self._by_head(shard, weights, f"{name}.value_up", geometry.value_dim)
        out = weights.normal(f"{name}.o", hidden, heads * geometry.value_dim) * GAIN
        self._out = shard.columns(out, heads)
        self._freqs = frequencies(geometry.rope_dim, config.rope_theta, weights.dtype)
        self._latent, self._rope = Key(layer, "latent"), Key(layer, "latent", 1)

    @staticmethod
    def buffers(geometry: Mla, layer: int, page_size: int, dtype: torch.dtype) -> list[Buffer]:
        """Two buffer groups of one name: the latents, then the rotary keys."""
        widths = (geometry.rank, geometry.rope_dim)
        return [
            Buffer("kv", layer, "latent", page_size, ((1, 1),), (width,), dtype, part=part)
            for part, width in enumerate(widths)
        ]

    def forward(self, x: Tensor, span: Span, pools: Pools) -> Tensor:
        """x: `[n, hidden]`, equal on all ranks. Returns this rank's part of the sum over ranks."""
        geometry, n = self._geometry, len(x)
        latent, rope = linear(x, self._down).view(n, 1, -1).split_with_sizes((geometry.rank, geometry.rope_dim), dim=-1)
        angles = span.positions[:, None].to(x.dtype) * self._freqs
        span.write(pools[self._latent], self._norm(latent))
        span.write(pools[self._rope], rotate(rope, angles))
        q = linear(x, self._q).view(n, self._heads, -1)
        absorbed = torch.einsum("nhd,hdr->nhr", q[..., : geometry.nope_dim], self._key_up)
        query = torch.cat((absorbed, rotate(q[..., geometry.nope_dim :], angles)), dim=-1)
        values = span.read(pools[self._latent])
        keys = torch.cat((values, span.read(pools[self._rope])), dim=-1)
        mixed = grouped_attention(query, keys, values, span.causal(x.dtype)).view(n, self._heads, -1)
        return linear(torch.einsum("nhr,hdr->nhd", mixed, self._value_up).flatten(1), self._out)

    def _by_head(self, shard: Shard, weights: Weights, name: str, width: int) -> Tensor:
        """The local heads of a projection out of the latent: `[heads, width, rank]`."""
        geometry = self._geometry
        rows = shard.rows(weights.normal(name, geometry.heads * width, geometry.rank), geometry.heads)
        return rows.view(self._heads, width, geometry.rank)
