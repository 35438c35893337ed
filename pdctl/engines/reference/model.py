"""The model, cut over pipeline stages and attention-TP ranks that share one process.

Every rank carries its own hidden state, its own slice of the weights and its own pools; only the sums over the ranks of
a stage (always in rank order) and the hand-over between stages join them. So a wrong byte in one rank's copy of a
replicated state shows, as it would with ranks in processes of their own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import linear

from pdctl.engines.reference.config import Gqa, Mla, ModelConfig
from pdctl.engines.reference.layers.attention import GqaLayer
from pdctl.engines.reference.layers.delta import DeltaLayer
from pdctl.engines.reference.layers.indexer import IndexerLayer, ring_layer
from pdctl.engines.reference.layers.latent import LatentLayer
from pdctl.engines.reference.layers.mlp import MlpLayer
from pdctl.engines.reference.layers.norm import Norm
from pdctl.engines.reference.layers.ple import PleLayer, context_buffer, move_context, ngram_window
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Shard, Weights

#: Prompts are computed in chunks that end at multiples of this, whatever else the engine does.
CHUNK = 64


@dataclass(frozen=True)
class RankLayer:
    """One rank's part of one layer."""

    mixer_norm: Norm
    mixer: GqaLayer | LatentLayer | DeltaLayer
    mlp_norm: Norm
    mlp: MlpLayer
    ple: PleLayer | None


@dataclass(frozen=True)
class Draft:
    """The one-layer multi-token-prediction draft of the last stage: proposes the token after the next."""

    hidden_norm: Norm
    token_norm: Norm
    join: Tensor
    ranks: tuple[RankLayer, ...]
    norm: Norm


Ranks = Sequence[Pools]


def stage_layers(layers: int, pp: int) -> list[range]:
    """Layers of each stage: as equal as they can be, the first stages longer."""
    share, rest = divmod(layers, pp)
    starts = [stage * share + min(stage, rest) for stage in range(pp + 1)]
    return [range(low, high) for low, high in pairwise(starts)]


class Model:
    """Weights of all ranks and stages; keeps nothing of a request."""

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, tp: int, pp: int, draft: bool) -> None:
        self.config, self.dtype, self.tp, self.pp = config, dtype, tp, pp
        self.stages = stage_layers(config.layers, pp)
        self._weights = Weights(config.seed, dtype)
        self._embed = self._weights.normal("embed", config.vocab, config.hidden, std=1.0)
        self._head = self._weights.normal("head", config.vocab, config.hidden) * 1.5
        self._skip = self._weights.normal("skip", config.vocab, config.hidden) * 1.5
        self._norm = self._norm_of("norm")
        self._layers = [[self._layer(layer, Shard(tp, rank)) for rank in range(tp)] for layer in range(config.layers)]
        self.draft = self._make_draft() if draft else None

    def buffers(self, stage: int, page_size: int) -> list[Buffer]:
        """What each rank of a stage keeps, in any order."""
        config = self.config
        found: dict[Key, Buffer] = {}
        for layer in self.stages[stage]:
            for buffer in self._layer_buffers(layer, page_size):
                found[buffer.key] = buffer
        if config.ple and any(layer in config.ple.layers for layer in self.stages[stage]):
            context = context_buffer(config.ple)
            found[context.key] = context
        if self.draft and stage == self.pp - 1:
            for buffer in self._attention_buffers(config.layers, page_size, draft=True):
                found[buffer.key] = buffer
        return list(found.values())

    def forward(self, span: Span, pools: Sequence[Ranks]) -> Tensor:
        """Compute a span on all ranks, pools `[stage][rank]`. Returns the last stage's rank 0: `[n, hidden]`."""
        hidden = self._embed[span.tokens]
        for stage, layers in enumerate(self.stages):
            hidden = self._stage(layers, hidden, span, pools[stage])
        return hidden

    def logits(self, hidden: Tensor, token: int) -> Tensor:
        """Scores of what follows `token`, whose hidden state is `[hidden]`: `[vocab]`."""
        return self._score(hidden, token, self._norm)

    def propose(self, hidden: Tensor, span: Span, pools: Sequence[Ranks]) -> int:
        """Run the draft over the target's hidden states of a span whose tokens are each the *next* one.

        Fills the draft's KV and rings for the span, and returns its guess of the token after the last one.
        """
        draft = self.draft
        if draft is None:
            raise RuntimeError("this model was built without its draft")
        parts = (
            draft.hidden_norm(hidden),
            draft.token_norm(self._embed[span.tokens]),
        )
        states = [linear(torch.cat(parts, dim=1), draft.join) for _ in draft.ranks]
        states = self._apply(draft.ranks, states, span, pools[-1])
        return int(self._score(states[0][-1], int(span.tokens[-1]), draft.norm).argmax())

    def _score(self, hidden: Tensor, token: int, norm: Norm) -> Tensor:
        """Half from the hidden state, half from the token itself: so a draft, too, is right now and then."""
        return linear(norm(hidden), self._head) + linear(self._embed[token], self._skip)

    def _stage(self, layers: range, hidden: Tensor, span: Span, ranks: Ranks) -> Tensor:
        states = [hidden] * self.tp
        ple = self.config.ple
        has_ple = ple is not None and any(layer in ple.layers for layer in layers)
        windows = [ngram_window(span, pools) for pools in ranks] if has_ple else []
        for layer in layers:
            parts = self._layers[layer]
            if parts[0].ple:
                states = [
                    x + part.ple.forward(x, window, span, pools)
                    for x, part, window, pools in zip(states, parts, windows, ranks, strict=True)
                    if part.ple
                ]
            states = self._apply(parts, states, span, ranks)
        if has_ple:
            for pools in ranks:
                move_context(span, pools)
        return states[0]

    def _apply(self, parts: Sequence[RankLayer], states: list[Tensor], span: Span, ranks: Ranks) -> list[Tensor]:
        mixed = _sum_over_ranks(
            part.mixer.forward(part.mixer_norm(x), span, pools)
            for part, x, pools in zip(parts, states, ranks, strict=True)
        )
        states = [x + mixed for x in states]
        fed = _sum_over_ranks(part.mlp.forward(part.mlp_norm(x)) for part, x in zip(parts, states, strict=True))
        return [x + fed for x in states]

    def _layer(self, layer: int, shard: Shard) -> RankLayer:
        config, weights = self.config, self._weights
        has_ple = config.ple is not None and layer in config.ple.layers
        return RankLayer(
            mixer_norm=self._norm_of(f"layers.{layer}.mixer_norm"),
            mixer=self._mixer(layer, shard),
            mlp_norm=self._norm_of(f"layers.{layer}.mlp_norm"),
            mlp=MlpLayer(config, layer, weights, shard),
            ple=PleLayer(config, config.ple, layer, weights) if config.ple and has_ple else None,
        )

    def _norm_of(self, name: str) -> Norm:
        return Norm(self._weights.near_one(name, self.config.hidden), self.config.eps)

    def _mixer(self, layer: int, shard: Shard) -> GqaLayer | LatentLayer | DeltaLayer:
        config = self.config
        if layer < config.layers and not config.full_layers[layer]:
            return DeltaLayer(config, config.delta, layer, self._weights, shard)
        return self._attention(config.attention, layer, shard)

    def _attention(self, geometry: Gqa | Mla, layer: int, shard: Shard) -> GqaLayer | LatentLayer:
        if isinstance(geometry, Mla):
            return LatentLayer(self.config, geometry, layer, self._weights, shard)
        indexer = None
        if self.config.indexer and self._sparse(layer):
            ring = ring_layer(layer, self.config.layers)
            indexer = IndexerLayer(self.config, self.config.indexer, layer, ring, self._weights)
        return GqaLayer(self.config, geometry, layer, self._weights, shard, indexer)

    def _sparse(self, layer: int) -> bool:
        """Whether an attention layer has an indexer; a draft's has wherever the model has one."""
        indexer = self.config.indexer
        return indexer is not None and (layer in indexer.layers or layer >= self.config.layers)

    def _layer_buffers(self, layer: int, page_size: int) -> list[Buffer]:
        config, dtype = self.config, self.dtype
        if config.full_layers[layer]:
            found = self._attention_buffers(layer, page_size)
        else:
            found = DeltaLayer.buffers(config.delta, layer, dtype)
        if config.ple and layer in config.ple.layers:
            found.append(PleLayer.buffer(config, config.ple, layer, dtype))
        return found

    def _attention_buffers(self, layer: int, page_size: int, *, draft: bool = False) -> list[Buffer]:
        config, dtype = self.config, self.dtype
        if isinstance(config.attention, Mla):
            return LatentLayer.buffers(config.attention, layer, page_size, dtype)
        found = GqaLayer.buffers(config.attention, layer, page_size, dtype, draft=draft)
        if config.indexer and self._sparse(layer):
            ring = ring_layer(layer, config.layers)
            found += IndexerLayer.buffers(config.indexer, layer, ring, page_size, dtype, draft=draft)
        return found

    def _make_draft(self) -> Draft:
        config, weights = self.config, self._weights
        return Draft(
            hidden_norm=self._norm_of("draft.hidden_norm"),
            token_norm=self._norm_of("draft.token_norm"),
            join=weights.normal("draft.join", config.hidden, 2 * config.hidden),
            ranks=tuple(self._layer(config.layers, Shard(self.tp, rank)) for rank in range(self.tp)),
            norm=self._norm_of("draft.norm"),
        )


def _sum_over_ranks(parts: Iterable[Tensor]) -> Tensor:
    """Add the ranks' parts from rank 0 on: one order, one result."""
    return reduce(torch.add, parts)
