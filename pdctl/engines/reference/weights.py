"""Weights from a seed: a matrix is a function of its name alone, so every rank and stage can cut its own part of it."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor


def local_heads(heads: int, tp: int, rank: int) -> range:
    """The heads of a group that a rank holds: its share, or the one head that it has in common with its neighbours."""
    if heads >= tp:
        share = heads // tp
        return range(rank * share, (rank + 1) * share)
    head = rank // (tp // heads)
    return range(head, head + 1)


@dataclass(frozen=True)
class Shard:
    """One attention-TP rank of `tp`."""

    tp: int
    rank: int

    def heads(self, heads: int) -> range:
        """Heads of a group of `heads` held here."""
        return local_heads(heads, self.tp, self.rank)

    def rows(self, weight: Tensor, heads: int) -> Tensor:
        """The local rows of `[heads * width, in]`."""
        held = self.heads(heads)
        parts = weight.reshape(heads, -1, weight.shape[-1])[held.start : held.stop]
        return parts.flatten(0, 1).contiguous()

    def columns(self, weight: Tensor, heads: int) -> Tensor:
        """The local columns of `[out, heads * width]`."""
        return self.rows(weight.T, heads).T.contiguous()


class Weights:
    """Draws named matrices; always in float64, so that float32 is the same model rounded."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self._seed = seed
        self.dtype = dtype

    def normal(self, name: str, *shape: int, std: float | None = None) -> Tensor:
        """Normal values; without `std` scaled by the last dimension, so that a product keeps its input's size."""
        return (self._draw(name, *shape) * (std if std is not None else shape[-1] ** -0.5)).to(self.dtype)

    def near_one(self, name: str, *shape: int) -> Tensor:
        """Scales of a norm: 1 with some spread."""
        return (1 + 0.1 * self._draw(name, *shape)).to(self.dtype)

    def _draw(self, name: str, *shape: int) -> Tensor:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        return torch.randn(shape, generator=generator, dtype=torch.float64)
