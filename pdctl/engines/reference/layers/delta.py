"""Gated delta-rule layers (GDN and KDA): a short conv and a matrix state, both kept in the request's slot.

S_i = S_{i-1} diag(g_i) + u_i k_i^T,  u_i = beta_i (v_i - S_{i-1} diag(g_i) k_i),  o_i = S_i q_i
(Yang et al., Gated Delta Networks, 2024; KDA has one decay a channel, GDN one a head.) Blocks of 16 tokens are solved
at once: with decays multiplied up from the start of the block the u_i are a triangular system.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, sigmoid, silu

from pdctl.engines.reference.config import Delta, ModelConfig
from pdctl.engines.reference.layers.norm import Norm, unit
from pdctl.engines.reference.pools import Buffer, Key, Pools
from pdctl.engines.reference.span import Span
from pdctl.engines.reference.weights import Shard, Weights

#: Tokens solved at once.
BLOCK = 16
#: Bound of a decay's logarithm: a state is felt for some tens of tokens, and a block's factor is exp(-2) at worst.
DECAY = 0.125


class DeltaLayer:
    """One rank's heads of a delta-rule layer."""

    def __init__(self, config: ModelConfig, geometry: Delta, layer: int, weights: Weights, shard: Shard) -> None:
        name, hidden, value_width = f"layers.{layer}.delta", config.hidden, geometry.value_heads * geometry.value_dim
        groups = _groups(geometry)
        self._geometry, self._eps = geometry, config.eps
        self._key_heads = len(shard.heads(geometry.key_heads))
        self._value_heads = len(shard.heads(geometry.value_heads))
        decays = geometry.key_dim if geometry.per_channel else 1

        def rows(part: str, heads: int, width: int, inputs: int) -> Tensor:
            return shard.rows(weights.normal(f"{name}.{part}", heads * width, inputs), heads)

        self._qkv = torch.cat([rows(part, *group, hidden) for part, group in zip("qkv", groups, strict=True)])
        self._conv = torch.cat(
            [rows(f"conv_{part}", *group, geometry.kernel) for part, group in zip("qkv", groups, strict=True)]
        )
        self._gates = torch.cat(
            [
                rows("z", geometry.value_heads, geometry.value_dim, hidden),
                rows("beta", geometry.value_heads, 1, hidden),
                rows("decay", geometry.value_heads, decays, hidden),
            ]
        )
        self._decays = decays
        self._norm = Norm(weights.near_one(f"{name}.norm", geometry.value_dim), config.eps)
        self._out = shard.columns(weights.normal(f"{name}.o", hidden, value_width), geometry.value_heads)
        self._conv_key, self._temporal_key = Key(layer, "conv"), Key(layer, "temporal")

    @staticmethod
    def buffers(geometry: Delta, layer: int, dtype: torch.dtype) -> list[Buffer]:
        """The conv state cat(q, k, v), channel-first for GDN and row by row for KDA, and the temporal state."""
        groups, taps = _groups(geometry), geometry.kernel - 1
        outer, inner = (taps, ()) if geometry.per_channel else (1, (taps,))
        state = (geometry.value_dim, geometry.key_dim)
        heads = ((geometry.value_heads, 1),)
        return [
            Buffer("mamba", layer, "conv", outer, groups, inner, dtype, split=True),
            Buffer("mamba", layer, "temporal", 1, heads, state, dtype, split=True),
        ]

    def forward(self, x: Tensor, span: Span, pools: Pools) -> Tensor:
        """x: `[n, hidden]`, equal on all ranks. Returns this rank's part of the sum over ranks."""
        geometry, n, heads = self._geometry, len(x), self._value_heads
        mixed = self._short_conv(linear(x, self._qkv), pools[self._conv_key][span.slot])
        key_width = self._key_heads * geometry.key_dim
        qk, v = mixed.split_with_sizes((2 * key_width, heads * geometry.value_dim), dim=1)
        q, k = self._spread(qk)
        z, beta, decay = linear(x, self._gates).split_with_sizes(
            (heads * geometry.value_dim, heads, heads * self._decays), dim=1
        )
        log_decay = -DECAY * sigmoid(decay).view(n, heads, -1).transpose(0, 1)
        beta = sigmoid(beta).T.unsqueeze(-1)
        v = v.view(n, heads, -1).transpose(0, 1)
        out = self._recur(
            q * geometry.key_dim**-0.5, k, v, beta, log_decay, span, pools[self._temporal_key][span.slot, 0]
        )
        gated = self._norm(out.transpose(0, 1)).flatten(1) * silu(z)
        return linear(gated, self._out)

    def _short_conv(self, x: Tensor, state: Tensor) -> Tensor:
        """Causal depthwise conv of `[n, channels]`; `state` holds the last kernel - 1 inputs and is moved on."""
        channels, taps = x.shape[1], self._geometry.kernel - 1
        past = state.view(taps, channels).T if self._geometry.per_channel else state.view(channels, taps)
        inputs = torch.cat((past, x.T), dim=1)
        past.copy_(inputs[:, -taps:])
        return silu((inputs.unfold(1, taps + 1, 1) * self._conv[:, None]).sum(-1)).T

    def _spread(self, qk: Tensor) -> tuple[Tensor, Tensor]:
        """`[n, 2 * key_heads * d]` → unit vectors q, k `[value_heads, n, d]`: neighbouring value heads share a key."""
        n, keys = len(qk), self._key_heads
        parts = unit(qk.view(n, 2, keys, 1, -1), self._eps).permute(1, 2, 3, 0, 4)
        q, k = parts.expand(-1, -1, self._value_heads // keys, -1, -1).flatten(1, 2)
        return q, k

    def _recur(
        self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, span: Span, state: Tensor
    ) -> Tensor:
        """Run the recurrence, blocks cut at multiples of `BLOCK`; state `[heads, value_dim, key_dim]` is moved on."""
        outputs = []
        start = 0
        while start < q.shape[1]:
            end = min(q.shape[1], start + BLOCK - (span.start + start) % BLOCK)
            part = slice(start, end)
            solve = _solve if end - start > 1 else _step
            out, new = solve(q[:, part], k[:, part], v[:, part], beta[:, part], log_decay[:, part], state)
            state.copy_(new)
            outputs.append(out)
            start = end
        return torch.cat(outputs, dim=1)


def _solve(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One block of the recurrence in closed form; all `[heads, n, ·]`, state `[heads, value_dim, key_dim]`."""
    grown = log_decay.cumsum(1)
    down, up = grown.exp(), (-grown).exp()
    k_down, k_up, q_down = k * down, k * up, q * down
    lower = (beta * (k_down @ k_up.mT)).tril(-1)
    right = beta * (v - k_down @ state.mT)
    u = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
    out = q_down @ state.mT + (q_down @ k_up.mT).tril() @ u
    last = down[:, -1:]
    return out, state * last + u.mT @ (k_up * last)


def _step(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence itself, for one token; as `_solve`."""
    state = state * log_decay.exp()
    u = beta * (v - (state * k).sum(-1, keepdim=True).mT)
    state = torch.addcmul(state, u.mT, k)
    return (state * q).sum(-1, keepdim=True).mT, state


def _groups(geometry: Delta) -> tuple[tuple[int, int], ...]:
    """Heads and width of q, k and v."""
    key = (geometry.key_heads, geometry.key_dim)
    return key, key, (geometry.value_heads, geometry.value_dim)
