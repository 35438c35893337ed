"""Root-mean-square normalisation, in as few operations as there can be: at one token, calls are what costs."""

import torch
from torch import Tensor


class Norm:
    """Scales vectors of the last dimension to a length of sqrt(dim), then by `weight` (Zhang, Sennrich, 2019)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight * len(weight) ** 0.5
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """x: `[..., dim]`."""
        normed: Tensor = unit(x, self._eps) * self._weight
        return normed


def unit(x: Tensor, eps: float) -> Tensor:
    """Vectors of the last dimension at length 1; `eps` keeps zero at zero."""
    normed: Tensor = x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) + eps)
    return normed
