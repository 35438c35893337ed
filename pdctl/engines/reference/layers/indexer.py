"""The selector of a sparse-attention layer, and the three kinds of state that it keeps.

Raw indexer keys wait in a ring, a row per request, beside a ring of their (three-axis) positions. When the ring is
full, at every `ratio`-th token, its keys are rotated by the positions found in the ring and their mean becomes one
compressed key in the page. A query attends to the best `budget / ratio` compressed blocks and to the tokens of its own
block, which still wait in the ring. The scores are also added to the attention logits, so that every key, position and
compressed key bears on the output, not only on a discrete choice.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from pdctl.engines.reference.config import Indexer, ModelConfig
from pdctl.engines.reference.layers.norm import Norm
from pdctl.engines.reference.layers.rope import frequencies, rotate
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Weights
from pdctl_transfer.layout.manifest import ROPE_RING_LAYER

AXES = 3
#: Scores weigh as much as the products of queries and keys, so that one wrong key among hundreds shows.
GAIN = 6


class IndexerLayer:
    """Replicated on every rank: all choose the same blocks."""

    def __init__(self, config: ModelConfig, geometry: Indexer, layer: int, ring_layer: int, weights: Weights) -> None:
        name, dim = f"layers.{layer}.indexer", geometry.head_dim
        self._geometry = geometry
        self._q = weights.normal(f"{name}.q", geometry.heads * dim, config.hidden)
        self._k = weights.normal(f"{name}.k", geometry.kv_heads * dim, config.hidden)
        self._mix = weights.normal(f"{name}.mix", geometry.heads, config.hidden) * GAIN
        self._norm = Norm(weights.near_one(f"{name}.norm", dim), config.eps)
        self._freqs = frequencies(dim, config.rope_theta, weights.dtype)
        self._axis = torch.arange(len(self._freqs)) % AXES
        self._pending, self._compressed = Key(layer, "pending_k"), Key(layer, "compressed_k")
        self._ring = Key(ring_layer, "rope_position")

    @staticmethod
    def buffers(
        geometry: Indexer, layer: int, ring_layer: int, page_size: int, dtype: torch.dtype, *, draft: bool = False
    ) -> list[Buffer]:
        """The pending ring, the ring of positions (shared by the layers of a model), and the compressed pages."""
        heads, ratio = ((geometry.kv_heads, 1),), geometry.ratio
        inner = (geometry.head_dim,)
        return [
            Buffer("qsa_pending", layer, "pending_k", ratio, heads, inner, dtype, draft=draft),
            Buffer("qsa_pending", ring_layer, "rope_position", ratio, ((1, AXES),), (), torch.int64, draft=draft),
            Buffer("qsa_compressed", layer, "compressed_k", page_size // ratio, heads, inner, dtype, draft=draft),
        ]

    def bias(self, x: Tensor, span: Span, pools: Pools) -> Tensor:
        """Scores to add to the attention logits: `[n, end]`, -inf where a token is not attended to."""
        geometry, n, ratio = self._geometry, len(x), self._geometry.ratio
        raw = self._norm(linear(x, self._k).view(n, geometry.kv_heads, -1))
        keys, compressed = self._advance(raw, span, pools)
        query = self._rotated(linear(x, self._q).view(n, geometry.heads, -1), _axes(span.positions))
        mix = linear(x, self._mix)

        blocks = span.positions // ratio
        first = span.start - span.start % ratio
        bias = torch.full((n, span.end), float("-inf"), dtype=x.dtype)
        ahead = torch.arange(first, span.end)
        local = (ahead[None] // ratio == blocks[:, None]) & (ahead[None] <= span.positions[:, None])
        bias[:, first:] = self._scores(query, mix, keys).masked_fill(~local, float("-inf"))
        full = len(compressed)
        if full:
            unseen = torch.arange(full)[None] >= blocks[:, None]
            scores = self._scores(query, mix, compressed).masked_fill(unseen, float("-inf"))
            best = scores.topk(min(geometry.budget // ratio, full), dim=-1)
            chosen = torch.full_like(scores, float("-inf")).scatter_(1, best.indices, best.values)
            width = min(full * ratio, span.end)
            spread = chosen.repeat_interleave(ratio, dim=1)[:, :width]
            bias[:, :width] = torch.maximum(bias[:, :width], spread)
        return bias

    def _advance(self, raw: Tensor, span: Span, pools: Pools) -> tuple[Tensor, Tensor]:
        """Pass the new keys through the ring; compress each time it is full.

        raw: `[n, kv_heads, d]`. Returns the rotated keys from the start of the span's first block on, and the
        compressed keys of all blocks complete at the span's end.
        """
        ratio = self._geometry.ratio
        pending, ring = pools[self._pending][span.row], pools[self._ring][span.row]
        compressed = pools[self._compressed]
        per_page = span.page_size // ratio
        rotated: list[Tensor] = []
        start = span.start
        while start < span.end:
            end = min(span.end, start - start % ratio + ratio)
            low, high = start % ratio, (end - 1) % ratio + 1
            pending[low:high] = raw[start - span.start : end - span.start]
            ring[low:high] = _axes(torch.arange(start, end))
            rotated.append(self._rotated(pending[:high], ring[:high]))
            if high == ratio:
                block = start // ratio
                page = span.pages[block // per_page]
                compressed[page, block % per_page] = rotated[-1].mean(dim=0)
            start = end
        return torch.cat(rotated), compressed[span.pages].flatten(0, 1)[: span.end // ratio]

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate `[n, heads, d]` by three-axis positions `[n, 3]`; frequency i turns with axis i mod 3."""
        return rotate(x, positions[:, self._axis].to(x.dtype) * self._freqs)

    def _scores(self, query: Tensor, mix: Tensor, keys: Tensor) -> Tensor:
        """Scores of query `[n, heads, d]`, mix `[n, heads]`, keys `[m, kv_heads, d]` → `[n, m]`."""
        n, heads, dim = query.shape
        kv_heads = keys.shape[1]
        grouped = query.view(n, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3).flatten(1, 2)
        products = (grouped @ keys.permute(1, 2, 0)).view(heads, n, -1)
        return (silu(products * dim**-0.5) * mix.T[:, :, None]).sum(dim=0)


def ring_layer(layer: int, layers: int) -> int:
    """The id of the position ring: reserved for the target model, for a draft the one after its layers."""
    return ROPE_RING_LAYER if layer < layers else layers + 1


def _axes(positions: Tensor) -> Tensor:
    """Text has the same position on all three axes."""
    return positions[:, None].expand(-1, AXES)
