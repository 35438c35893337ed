"""Per-layer embedding: hashed n-grams of the tokens themselves, through a short conv, into the hidden state.

Its state is the last tokens (the n-gram context, one for all PLE layers of a stage) and the conv's past inputs.
Replicated on every rank.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, sigmoid, silu

from pdctl.engines.reference.config import ModelConfig, Ple
from pdctl.engines.reference.layers.norm import Norm
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Weights
from pdctl_transfer.layout.manifest import NGRAM_LAYER

NGRAM = Key(NGRAM_LAYER, "ple_ngram")

#: Odd multipliers of the hash, one for each place of an n-gram; products wrap.
MULTIPLIERS = (1, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)


def context_buffer(geometry: Ple) -> Buffer:
    """The n-gram context: the last `ngram - 1` token ids."""
    return Buffer("mamba", NGRAM_LAYER, "ple_ngram", 1, ((1, geometry.ngram - 1),), (), torch.int64, host=True)


def ngram_window(span: Span, pools: Pools) -> Tensor:
    """The n-grams that end at each token of the span: ids `[n, ngram]`, the token itself last."""
    past = pools[NGRAM][span.slot, 0]
    return torch.cat((past, span.tokens)).unfold(0, len(past) + 1, 1)


def move_context(span: Span, pools: Pools) -> None:
    """Keep the span's last tokens for the next one; once a stage and rank, after its layers."""
    past = pools[NGRAM][span.slot, 0]
    past.copy_(torch.cat((past, span.tokens))[-len(past) :])


class PleLayer:
    """The embedding that is added before one layer."""

    def __init__(self, config: ModelConfig, geometry: Ple, layer: int, weights: Weights) -> None:
        name, hidden = f"layers.{layer}.ple", config.hidden
        self._geometry = geometry
        sizes = range(2, geometry.ngram + 1)
        self._tables = {
            size: weights.normal(f"{name}.table{size}", geometry.vocab, geometry.embed_dim, std=1.0) for size in sizes
        }
        self._in = weights.normal(f"{name}.in", hidden, geometry.embed_dim)
        self._gate = weights.normal(f"{name}.gate", hidden, hidden)
        self._conv = weights.normal(f"{name}.conv", hidden, geometry.kernel)
        self._norm = Norm(weights.near_one(f"{name}.norm", hidden), config.eps)
        self._state = Key(layer, "ple_short_conv")

    @staticmethod
    def buffer(config: ModelConfig, geometry: Ple, layer: int, dtype: torch.dtype) -> Buffer:
        """The past inputs of the dilated conv, channel-first."""
        return Buffer(
            "mamba", layer, "ple_short_conv", 1, ((1, config.hidden),), (geometry.state_len,), dtype, host=True
        )

    def forward(self, x: Tensor, window: Tensor, span: Span, pools: Pools) -> Tensor:
        """What to add to `x` `[n, hidden]`; window: the n-grams `[n, ngram]`."""
        embedded = sum(
            (table[self._hashed(window[:, -size:])] for size, table in self._tables.items()), start=x.new_zeros(())
        )
        inputs = self._norm(linear(embedded, self._in))
        mixed = self._short_conv(inputs, pools[self._state][span.slot, 0])
        return sigmoid(linear(x, self._gate)) * mixed

    def _hashed(self, ngrams: Tensor) -> Tensor:
        """Rows of the table for n-grams `[n, size]` of any ids."""
        factors = torch.tensor(MULTIPLIERS[: ngrams.shape[1]], dtype=torch.int64)
        return (ngrams * factors).sum(-1).remainder(self._geometry.vocab)

    def _short_conv(self, x: Tensor, state: Tensor) -> Tensor:
        """Causal depthwise conv of `[n, hidden]` dilated by the n-gram size; `state` `[hidden, state_len]` moves on."""
        geometry = self._geometry
        inputs = torch.cat((state, x.T), dim=1)
        state.copy_(inputs[:, -geometry.state_len :])
        taps = inputs.unfold(1, geometry.state_len + 1, 1)[..., :: geometry.ngram]
        return silu((taps * self._conv[:, None]).sum(-1)).T
