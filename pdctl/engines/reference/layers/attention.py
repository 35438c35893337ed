"""Grouped-query attention over paged keys and values, dense or as sparse as its selector says."""

import torch
from torch import Tensor
from torch.nn.functional import linear

from pdctl.engines.reference.config import Gqa, ModelConfig
from pdctl.engines.reference.layers.indexer import IndexerLayer
from pdctl.engines.reference.layers.norm import Norm
from pdctl.engines.reference.layers.rope import frequencies, rotate
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Shard, Weights

#: What attention adds counts for more than what is there, so that a wrong value in a page shows.
GAIN = 2


class GqaLayer:
    """One rank's query heads, and the key-value heads that they need."""

    def __init__(
        self,
        config: ModelConfig,
        geometry: Gqa,
        layer: int,
        weights: Weights,
        shard: Shard,
        indexer: IndexerLayer | None,
    ) -> None:
        name, heads, kv_heads, dim = f"layers.{layer}.attn", geometry.heads, geometry.kv_heads, geometry.head_dim
        self._dim = dim
        self._heads, self._kv_heads = len(shard.heads(heads)), len(shard.heads(kv_heads))
        self._qkv = torch.cat(
            [
                shard.rows(weights.normal(f"{name}.q", heads * dim, config.hidden), heads),
                shard.rows(weights.normal(f"{name}.k", kv_heads * dim, config.hidden), kv_heads),
                shard.rows(weights.normal(f"{name}.v", kv_heads * dim, config.hidden), kv_heads),
            ]
        )
        self._out = shard.columns(weights.normal(f"{name}.o", config.hidden, heads * dim) * GAIN, heads)
        self._q_norm = Norm(weights.near_one(f"{name}.q_norm", dim) * 1.5, config.eps)
        self._k_norm = Norm(weights.near_one(f"{name}.k_norm", dim) * 1.5, config.eps)
        self._freqs = frequencies(geometry.rotary_dim, config.rope_theta, weights.dtype)
        self._k, self._v = Key(layer, "k"), Key(layer, "v")
        self._indexer = indexer

    @staticmethod
    def buffers(geometry: Gqa, layer: int, page_size: int, dtype: torch.dtype, *, draft: bool = False) -> list[Buffer]:
        """K and V pages, NHD."""
        groups = ((geometry.kv_heads, 1),)
        return [
            Buffer("kv", layer, tensor, page_size, groups, (geometry.head_dim,), dtype, split=True, draft=draft)
            for tensor in ("k", "v")
        ]

    def forward(self, x: Tensor, span: Span, pools: Pools) -> Tensor:
        """x: `[n, hidden]`, equal on all ranks. Returns this rank's part of the sum over ranks."""
        n, dim = len(x), self._dim
        q, k, v = (
            linear(x, self._qkv).view(n, -1, dim).split_with_sizes((self._heads, self._kv_heads, self._kv_heads), dim=1)
        )
        angles = span.positions[:, None].to(x.dtype) * self._freqs
        q = rotate(self._q_norm(q), angles)
        k = rotate(self._k_norm(k), angles)
        span.write(pools[self._k], k)
        span.write(pools[self._v], v)
        keys, values = span.read(pools[self._k]), span.read(pools[self._v])
        bias = self._indexer.bias(x, span, pools) if self._indexer else span.causal(x.dtype)
        return linear(grouped_attention(q, keys, values, bias), self._out)


def grouped_attention(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Attend from q `[n, heads, d]` to keys `[t, kv_heads, d]`, values `[t, kv_heads, e]`, with bias `[n, t]`.

    Returns `[n, heads * e]`. Neighbouring query heads share a key head.
    """
    n, heads, dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.view(n, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).flatten(1, 2)
    logits = (grouped @ keys.permute(1, 2, 0)) * dim**-0.5
    weights = (logits.view(kv_heads, -1, n, keys.shape[0]) + bias).softmax(-1).flatten(1, 2)
    out: Tensor = (weights @ values.transpose(0, 1)).view(kv_heads, -1, n, values.shape[-1])
    return out.permute(2, 0, 1, 3).reshape(n, -1)
