"""Torch as copier: for memory on a GPU, on a stream of its own, and on the CPU, where it gives what numpy gives.

Nothing here runs on the engine's streams: what `send` and `open` are given must be in place, or free, by then, and
`done` has waited for this copier's stream before bytes leave or a request is confirmed.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.session.bytes.checksum import U64, positions, samples, steps
from pdctl_transfer.session.bytes.copying import Buffer, Lot, widest_word
from pdctl_transfer.session.bytes.kept import Kept
from pdctl_transfer.session.bytes.packing import Column, Copy, Segment
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Verify

if TYPE_CHECKING:
    from torch import Tensor

KINDS: Final = ("cpu", "cuda")
Inner = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape in words and strides in bytes of what stands in an item."""


class TorchCopier(Kept):
    """Copies and sums in one rank's regions, all in one place, with torch.

    tensors: the memory of each region, beginning at its base: contiguous, or of a storage that holds all of the region
    where its items are apart; without them regions are taken by their
    addresses, and the engine keeps the memory alive. Raises TransferError PD4022 where tensors and regions disagree,
    PD4016 for a place that it has no way to reach.
    """

    can_copy = True

    def __init__(self, regions: Sequence[Region], tensors: "Sequence[Tensor] | None" = None) -> None:
        super().__init__()
        import torch

        self._torch: Any = torch
        self.regions = tuple(regions)
        places = {region.where for region in self.regions} or {CPU}
        if len(places) > 1:
            raise TransferError(f"regions on {', '.join(sorted(places))}: a copier has one place", code="PD4022")
        self.where = places.pop()
        self._device = torch.device(self.where)
        if self._device.type not in KINDS:
            raise TransferError(f"no copier for memory on {self.where}", code="PD4016")
        self._words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._stream: Any = self._torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        self._bytes = [self._region(number, tensors) for number in range(len(self.regions))]

    def allocate(self, nbytes: int) -> Buffer:
        """On the regions' device."""
        try:
            owner = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        except (RuntimeError, MemoryError) as error:  # torch's out-of-memory errors are RuntimeErrors
            raise FabricError(f"no memory for {nbytes} bytes on {self.where}: {error}", code="PD4014") from error
        return Buffer(owner.data_ptr(), nbytes, owner)

    def gather(self, segment: Segment, ids: Column, into: Buffer) -> None:
        """One selection a copy of the strip."""
        strip = segment.strip
        mine = ids[segment.start : segment.stop]
        with self._on_stream():
            which = self._ids(mine)
            region = self._bytes[strip.src_index]
            whole = self._flat(into.part(segment.at, segment.bytes))
            for copy in strip.copies:
                word = _word(region, whole, strip.src_step, strip.bytes, copy.src_offset, copy.src_stride, copy)
                inner = _inner(copy, copy.src_stride, word)
                items = self._strided(
                    region, word, (self.regions[strip.src_index].items, strip.src_step), copy.src_offset, inner
                )
                packed = self._strided(whole, word, (len(mine), strip.bytes), copy.at, _inner(copy, copy.length, word))
                packed.copy_(items.index_select(0, which))

    def scatter(self, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> None:
        """One copy by index a copy of the strip, chunk after chunk."""
        with self._on_stream():
            for chunk, ids, packed in lots:
                for segment in chunk:
                    count = segment.stop - segment.start
                    first, stop = count * part // parts, count * (part + 1) // parts
                    if stop > first:
                        size = segment.strip.bytes
                        share = packed.part(segment.at + first * size, (stop - first) * size)
                        self._unpack(segment, ids[segment.start + first : segment.start + stop], share)

    def sums(self, part: Part, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
        """The numbers that `checksum.sums` gives: int64 arithmetic wraps at 2^64 as uint64 does."""
        if how == "none":
            return {}
        found = {}
        with self._on_stream():
            for kind in part.kinds:
                ids = indices.get(kind)
                if ids is not None and len(ids):
                    views = self.about(part, (kind, how, side), partial(self._views, part))
                    which, position = self._ids(ids), self._weights(positions(len(ids)))
                    total = sum(self._sum(words, weight, which, position) for words, weight in views)
                    found[kind] = int(total) % (1 << 64)
        return found

    def done(self) -> None:
        """Wait for the stream."""
        if self._stream is not None:
            self._stream.synchronize()

    def _unpack(self, segment: Segment, ids: Column, packed: Buffer) -> None:
        strip, which = segment.strip, self._ids(ids)
        region, whole = self._bytes[strip.dst_index], self._flat(packed)
        for copy in strip.copies:
            word = _word(region, whole, strip.dst_step, strip.bytes, copy.dst_offset, copy.dst_stride, copy)
            inner = _inner(copy, copy.dst_stride, word)
            items = self._strided(
                region, word, (self.regions[strip.dst_index].items, strip.dst_step), copy.dst_offset, inner
            )
            rows = self._strided(whole, word, (len(ids), strip.bytes), copy.at, _inner(copy, copy.length, word))
            items.index_copy_(0, which, rows)

    def _views(self, part: Part, what: tuple[str, Verify, Side]) -> "list[tuple[Tensor, Tensor]]":
        """Of each sample, its words in all items of the region, in pieces that torch can read where a region begins at
        an odd address or its items are an odd distance apart, and their weights."""
        made = []
        for sample in samples(part, *what):
            region = self._bytes[sample.region]
            piece = math.gcd(sample.word, sample.step, region.data_ptr(), region.storage_offset())
            inner = (*sample.shape, sample.word // piece), (*sample.strides, piece)
            items = self.regions[sample.region].items
            words = self._strided(region, piece, (items, sample.step), sample.offset, inner)
            made.append((words, self._weights(sample.weight)))
        return made

    def _sum(self, words: "Tensor", weight: "Tensor", which: "Tensor", position: "Tensor") -> "Tensor":
        torch, size, pieces = self._torch, words.element_size(), words.shape[-1]
        shifts = torch.arange(pieces, device=self._device) * (8 * size)
        total: Tensor = torch.zeros((), dtype=torch.int64, device=self._device)
        cuts = steps(len(which), weight.nbytes * pieces)
        for at in cuts:
            some = words.index_select(0, which[at : at + cuts.step]).reshape(-1, len(weight), pieces).to(torch.int64)
            if size < 8:  # torch has no unsigned words
                some = (some & (1 << 8 * size) - 1) << shifts
            total += ((some.sum(2) * weight).sum(1) * position[at : at + cuts.step]).sum()
        return total

    def _region(self, number: int, tensors: "Sequence[Tensor] | None") -> "Tensor":
        region = self.regions[number]
        buffer = Buffer(region.base, region.nbytes, None)
        if tensors is None:
            return self._flat(buffer)
        if len(tensors) != len(self.regions):
            raise TransferError(f"{len(tensors)} tensors for {len(self.regions)} regions", code="PD4022")
        tensor = tensors[number]
        storage = tensor.untyped_storage()
        at = region.base - storage.data_ptr()
        held = storage.nbytes() - at if region.stride else tensor.nbytes
        tight = tensor.is_contiguous() or region.stride
        if not tight or tensor.data_ptr() != region.base or held < buffer.nbytes:
            apart = f", {region.stride} bytes apart" if region.stride else ""
            cause = f"tensor {number} is not {region.items} items of {region.item_len} bytes{apart} at {region.base:#x}"
            raise TransferError(cause, code="PD4022")
        empty = self._torch.empty(0, dtype=self._torch.uint8, device=self._device)
        flat: Tensor = empty.set_(storage, at, (buffer.nbytes,))
        return flat

    def _flat(self, buffer: Buffer) -> "Tensor":
        """Bytes as a tensor: of the tensor they are part of, else by address."""
        torch, owner = self._torch, buffer.owner
        flat: Tensor
        if isinstance(owner, torch.Tensor):
            at = buffer.base - owner.data_ptr()
            flat = owner[at : at + buffer.nbytes]
        elif not buffer.nbytes:
            flat = torch.empty(0, dtype=torch.uint8, device=self._device)
        elif self._device.type == "cuda":
            flat = torch.as_tensor(_DeviceBytes(buffer), device=self._device)
        else:
            flat = torch.frombuffer((ctypes.c_uint8 * buffer.nbytes).from_address(buffer.base), dtype=torch.uint8)
        return flat

    def _strided(self, flat: "Tensor", word: int, each: tuple[int, int], offset: int, inner: Inner) -> "Tensor":
        """Words of shape [items][inner], `offset` bytes into each item; `each`: how many, and bytes from one to the
        next."""
        (items, step), (shape, strides) = each, inner
        typed = flat[: len(flat) // word * word].view(self._words[word])
        apart = [stride // word for stride in (step, *strides)]
        return typed.as_strided((items, *shape), apart, typed.storage_offset() + offset // word)

    def _ids(self, ids: Column) -> "Tensor":
        return self._on_device(ids)

    def _weights(self, weights: U64) -> "Tensor":
        return self._on_device(weights.view(np.int64))

    def _on_device(self, numbers: Column) -> "Tensor":
        made: Tensor = self._torch.tensor(numbers, device=self._device)
        return made

    def _on_stream(self) -> AbstractContextManager[Any]:
        return self._torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()


class _DeviceBytes:
    """Device memory at an address, as torch takes it from others."""

    def __init__(self, buffer: Buffer) -> None:
        self.__cuda_array_interface__ = {
            "data": (buffer.base, False),
            "shape": (buffer.nbytes,),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
        }


def _inner(copy: Copy, stride: int, word: int) -> Inner:
    """A copy's words within an item, at this distance from repetition to repetition."""
    return (copy.repeats, copy.length // word), (stride if copy.repeats > 1 else copy.length, word)


def _word(region: "Tensor", whole: "Tensor", item: int, packed: int, offset: int, stride: int, copy: Copy) -> int:
    """The widest word in which both memories can be copied."""
    starts = [start for t in (region, whole) for start in (t.data_ptr(), int(t.storage_offset()))]
    return widest_word(item, packed, offset, copy.length, stride if copy.repeats > 1 else 0, copy.at, *starts)
