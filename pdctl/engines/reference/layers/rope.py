"""Rotary position embedding, from positions themselves: a position is data here, it may have come over the wire."""

import torch
from torch import Tensor


def frequencies(dim: int, theta: float, dtype: torch.dtype) -> Tensor:
    """Inverse frequencies of `dim // 2` pairs (Su et al., RoFormer, eq. 15)."""
    return (theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)).to(dtype)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate the first dims of `x` `[n, heads, dim]` by `angles` `[n, pairs]`; dims beyond `2 * pairs` stay."""
    pairs = angles.shape[-1]
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
