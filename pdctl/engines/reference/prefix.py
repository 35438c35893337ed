"""Reuse of prompts' beginnings: what a chunk left behind is copied aside and copied back for the next prompt with it.

A prefix can only be reused where all of its state is known: at the end of a chunk. There the chunk's pages are whole,
and the recurrent state and the rings in the slot and the row are those of exactly so many tokens. Copies cost memory
but need no counting of who still uses a page.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pdctl.engines.reference.allocator import Place
from pdctl.engines.reference.pools import KINDS, Key, Pools, Space
from pdctl.engines.reference.request import digest


@dataclass(frozen=True)
class Snapshot:
    """The state at the end of a chunk: pages, slot and row of each rank and buffer, and the last hidden state."""

    items: tuple[Tensor, ...]
    hidden: Tensor


class PrefixCache:
    """Snapshots of one group, by the tokens that led to them; the least recently used go first."""

    def __init__(self, tokens: int, chunk: int, page_size: int) -> None:
        """At most `tokens` are kept, `chunk` of them at a time: whole chunks of computing and whole pages."""
        self._most = tokens // chunk
        self._chunk = chunk
        self._pages_each = chunk // page_size
        self._kept: OrderedDict[str, Snapshot] = OrderedDict()

    def restore(self, prompt: Sequence[int], place: Place, ranks: Sequence[Pools]) -> tuple[int, Tensor | None]:
        """Fill a place with the longest known prefix; its length, and the hidden state of its last token.

        At least one token of the prompt is left to compute: it gives the first output token.
        """
        found: list[Snapshot] = []
        for end in range(self._chunk, len(prompt), self._chunk):
            key = digest(prompt[:end])
            if key not in self._kept:
                break
            self._kept.move_to_end(key)
            found.append(self._kept[key])
        for number, snapshot in enumerate(found):
            views = self._views(number, place, ranks)
            for (pools, space, name, index), item in zip(views, snapshot.items, strict=True):
                if space == "page" or number == len(found) - 1:
                    pools.tensors[name][index] = item
        return len(found) * self._chunk, found[-1].hidden if found else None

    def keep(self, prompt: Sequence[int], end: int, place: Place, ranks: Sequence[Pools], hidden: Tensor) -> None:
        """Remember the state after `prompt[:end]`, if `end` is the end of a chunk."""
        if end % self._chunk or not self._most:
            return
        views = self._views(end // self._chunk - 1, place, ranks)
        items = tuple(pools.tensors[name][index] for pools, _, name, index in views)
        self._kept[digest(prompt[:end])] = Snapshot(items, hidden)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def _views(self, number: int, place: Place, ranks: Sequence[Pools]) -> list[tuple[Pools, Space, Key, Tensor]]:
        """What one chunk touches: a list of items in each buffer of each rank. Indexing with them copies."""
        first = number * self._pages_each
        items = {
            "page": torch.tensor(place.pages[first : first + self._pages_each]),
            "slot": torch.tensor([place.slot]),
            "row": torch.tensor([place.row]),
        }
        return [
            (pools, KINDS[buffer.kind], buffer.key, items[KINDS[buffer.kind]])
            for pools in ranks
            for buffer in pools.buffers
        ]
