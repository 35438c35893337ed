"""A gated feed-forward layer, cut by columns, then by rows."""

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from pdctl.engines.reference.config import ModelConfig
from pdctl.engines.reference.weights import Shard, Weights


class MlpLayer:
    """One rank's part of the intermediate units."""

    def __init__(self, config: ModelConfig, layer: int, weights: Weights, shard: Shard) -> None:
        name, hidden, inner = f"layers.{layer}.mlp", config.hidden, config.intermediate
        self._in = torch.cat(
            [shard.rows(weights.normal(f"{name}.{part}", inner, hidden), inner) for part in ("gate", "up")]
        )
        self._out = shard.columns(weights.normal(f"{name}.down", hidden, inner), inner)

    def forward(self, x: Tensor) -> Tensor:
        """x: `[n, hidden]`. Returns this rank's part of the sum over ranks."""
        gate, up = linear(x, self._in).chunk(2, dim=1)
        return linear(silu(gate) * up, self._out)
