"""What a rank keeps of its requests: typed buffers of equal items, described once for computing and for moving.

A layer declares `Buffer`s; a rank allocates one tensor for each, shaped `[items, outer, local units, *inner]`, and the
same declaration gives the manifest entry. So the manifest cannot say anything else than what is in memory.
"""

import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from pdctl.engines.reference.weights import Shard
from pdctl_transfer.layout.manifest import Component, Entry, Group, Sharding

Space = Literal["page", "slot", "row"]
Kind = Literal["kv", "mamba", "qsa_pending", "qsa_compressed"]

#: The order of components and of their tensors on the wire.
KINDS: Final[Mapping[Kind, Space]] = {"kv": "page", "mamba": "slot", "qsa_pending": "row", "qsa_compressed": "page"}
TENSORS: Final = (
    "k", "v", "latent", "conv", "temporal", "ple_short_conv", "ple_ngram", "pending_k", "rope_position", "compressed_k",
)  # fmt: skip


class Key(NamedTuple):
    """Names one buffer of a rank."""

    layer: int
    tensor: str
    part: int = 0


@dataclass(frozen=True)
class Buffer:
    """One buffer: an item is `[outer][units][*inner]`, its unit axis the concatenation of `groups` (heads, width).

    `host`: lies in host memory of its own, as the embedding that it belongs to does, not with the layers' state.
    `part` tells buffer groups apart that hold one tensor of one layer; on the wire they have one name, in this order.
    """

    kind: Kind
    layer: int
    tensor: str
    outer: int
    groups: tuple[tuple[int, int], ...]
    inner: tuple[int, ...]
    dtype: torch.dtype
    split: bool = False
    draft: bool = False
    part: int = 0
    host: bool = False

    @property
    def key(self) -> Key:
        """The name of this buffer within a rank."""
        return Key(self.layer, self.tensor, self.part)

    @property
    def inner_bytes(self) -> int:
        """Bytes of one unit."""
        return torch.Size(self.inner).numel() * self.dtype.itemsize

    def shape(self, shard: Shard) -> tuple[int, ...]:
        """Shape of an item on one rank."""
        units = sum((len(shard.heads(heads)) if self.split else heads) * width for heads, width in self.groups)
        return (self.outer, units, *self.inner)

    def entry(self, shard: Shard) -> Entry:
        """The manifest entry; the same on every rank."""
        outer, units, *_ = self.shape(shard)
        sharding: Sharding = "split" if self.split else "replicated"
        return Entry(
            layer=self.layer,
            tensor=self.tensor,
            sharding=sharding,
            outer=self.outer,
            groups=tuple(Group(heads, width) for heads, width in self.groups),
            inner_bytes=self.inner_bytes,
            item_len=outer * units * self.inner_bytes,
        )


def in_wire_order(buffers: Iterable[Buffer]) -> list[Buffer]:
    """Components in their order; within one, tensor by tensor with ascending layers, what belongs to a draft last."""
    kinds = list(KINDS)
    return sorted(
        buffers,
        key=lambda buffer: (
            kinds.index(buffer.kind),
            buffer.draft,
            TENSORS.index(buffer.tensor),
            buffer.part,
            buffer.layer,
        ),
    )


def components(buffers: Sequence[Buffer], shard: Shard) -> tuple[Component, ...]:
    """The components of a stage; a kind without a buffer has none."""
    return tuple(
        Component(kind, space, entries)
        for kind, space in KINDS.items()
        if (entries := tuple(buffer.entry(shard) for buffer in buffers if buffer.kind == kind))
    )


@dataclass(frozen=True)
class Sizes:
    """How many items of each index space a rank holds."""

    page: int
    slot: int
    row: int

    def of(self, space: Space) -> int:
        """Items of one space."""
        return {"page": self.page, "slot": self.slot, "row": self.row}[space]


class Pools:
    """The tensors of one rank of one stage, in wire order."""

    def __init__(self, buffers: Sequence[Buffer], shard: Shard, sizes: Sizes) -> None:
        self.buffers = in_wire_order(buffers)
        self.tensors = {
            buffer.key: _allocate(buffer, (sizes.of(KINDS[buffer.kind]), *buffer.shape(shard)))
            for buffer in self.buffers
        }

    def __getitem__(self, key: Key) -> Tensor:
        return self.tensors[key]

    def has(self, kind: Kind) -> bool:
        """Whether this stage keeps anything of a kind."""
        return any(buffer.kind == kind for buffer in self.buffers)

    def clear(self, space: Space, items: Sequence[int]) -> None:
        """Zero items, so that nothing of their last user can be seen."""
        index = torch.tensor(items, dtype=torch.int64)
        for buffer in self.buffers:
            if KINDS[buffer.kind] == space:
                self.tensors[buffer.key].index_fill_(0, index, 0)


def _allocate(buffer: Buffer, shape: tuple[int, ...]) -> Tensor:
    """Zeros; for a host buffer in an anonymous mapping, which the tensor keeps alive."""
    if not buffer.host:
        return torch.zeros(shape, dtype=buffer.dtype)
    count = torch.Size(shape).numel()
    return torch.frombuffer(mmap.mmap(-1, count * buffer.dtype.itemsize), dtype=buffer.dtype, count=count).view(shape)
