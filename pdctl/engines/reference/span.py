"""A run of consecutive tokens of one request, and where the request's state lies.

The ids are the same on every rank of an engine, so one span serves all ranks and layers of a forward pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class Span:
    """Tokens `[start, start + n)` of one request.

    pages: all of the request's KV pages so far; slot: its recurrent state; row: its row in the rings.
    """

    def __init__(self, tokens: Tensor, start: int, pages: Sequence[int], slot: int, row: int, page_size: int) -> None:
        self.tokens = tokens
        self.start = start
        self.end = start + len(tokens)
        self.slot = slot
        self.row = row
        self.page_size = page_size
        self.pages = torch.tensor(pages[: -(-self.end // page_size)], dtype=torch.int64)
        self.positions = torch.arange(start, self.end)
        self._write_pages = self.pages[self.positions // page_size]
        self._write_offsets = self.positions % page_size

    def write(self, pool: Tensor, values: Tensor) -> None:
        """Put one value a token into a paged pool; values: `[n, units, *inner]`."""
        pool[self._write_pages, self._write_offsets] = values

    def read(self, pool: Tensor) -> Tensor:
        """All values from token 0 to the end of the span: `[end, units, *inner]`, in a tensor of its own."""
        return pool[self.pages].flatten(0, 1)[: self.end]

    def causal(self, dtype: torch.dtype) -> Tensor:
        """`[n, end]`: 0 where a token may look, -inf where it may not."""
        keys = torch.arange(self.end)
        blocked = keys[None, :] > self.positions[:, None]
        return torch.zeros(blocked.shape, dtype=dtype).masked_fill_(blocked, float("-inf"))
