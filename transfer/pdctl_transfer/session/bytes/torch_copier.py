"""Torch as copier: for memory on a GPU, on a stream of its own, and on the CPU, where it gives what numpy gives.

Nothing here runs on the engine's streams (`device.py`): what `send` and `open` are given must be in place, or free, by
then or after the event that `after` was given, and `done` has waited for this copier's stream before bytes leave or a
request is confirmed.
"""

import ctypes
import math
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.session.bytes.checksum import U64, Sample, positions, samples, steps
from pdctl_transfer.session.bytes.copying import Buffer, Lot, widest_word
from pdctl_transfer.session.bytes.device import device_of
from pdctl_transfer.session.bytes.kept import Kept
from pdctl_transfer.session.bytes.packing import Column, Copy, Segment
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Verify

if TYPE_CHECKING:
    from torch import Tensor

AT_ONCE: Final = 64 << 20
"""Sampled words that are summed at once: a call of torch each for few entries costs more than the words."""
Inner = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape in words and strides in bytes of what stands in an item."""


class Sampled(NamedTuple):
    """Words of several entries that are alike, each of shape [items of the region][words][pieces], and their weights,
    [entries][words]."""

    words: "list[Tensor]"
    weight: "Tensor"


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
        self._at = device_of(torch, self.where)
        self._words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        self._mine = threading.local()
        """Of each thread, the ids that it used last, and where they are on the device."""
        self._positions: Tensor | None = None
        with torch.inference_mode(False):  # tensors made within could not be written by other threads
            self._bytes = [self._region(number, tensors) for number in range(len(self.regions))]

    def allocate(self, nbytes: int) -> Buffer:
        """On the regions' device."""
        try:
            with self._torch.inference_mode(False):
                owner = self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)
        except (RuntimeError, MemoryError) as error:  # torch's out-of-memory errors are RuntimeErrors
            raise FabricError(f"no memory for {nbytes} bytes on {self.where}: {error}", code="PD4014") from error
        return Buffer(owner.data_ptr(), nbytes, owner)

    def gather(self, segment: Segment, ids: Column, into: Buffer) -> None:
        """One selection a copy of the strip."""
        strip = segment.strip
        with self._asking():
            which = self._ids(ids)[segment.start : segment.stop]
            region = self._bytes[strip.src_index]
            whole = self._flat(into.part(segment.at, segment.bytes))
            for copy in strip.copies:
                word = _word(region, whole, strip.src_step, strip.bytes, copy.src_offset, copy.src_stride, copy)
                inner = _inner(copy, copy.src_stride, word)
                items = self._strided(
                    region, word, (self.regions[strip.src_index].items, strip.src_step), copy.src_offset, inner
                )
                packed = self._strided(whole, word, (len(which), strip.bytes), copy.at, _inner(copy, copy.length, word))
                self._torch.index_select(items, 0, which, out=packed)

    def scatter(self, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> None:
        """One copy by index a copy of the strip, chunk after chunk."""
        with self._asking():
            for chunk, ids, packed in lots:
                which = self._ids(ids)
                for segment in chunk:
                    count = segment.stop - segment.start
                    first, stop = count * part // parts, count * (part + 1) // parts
                    if stop > first:
                        size = segment.strip.bytes
                        share = packed.part(segment.at + first * size, (stop - first) * size)
                        self._unpack(segment, which[segment.start + first : segment.start + stop], share)

    def sums(self, part: Part, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
        """The numbers that `checksum.sums` gives: int64 arithmetic wraps at 2^64 as uint64 does."""
        if how == "none":
            return {}
        totals: dict[str, Tensor] = {}
        with self._asking():
            for kind in part.kinds:
                ids = indices.get(kind)
                if ids is not None and len(ids):
                    alike = self.about(part, (kind, how, side), partial(self._alike, part))
                    which, position = self._ids(ids), self._weights_of_positions(len(ids))
                    totals[kind] = sum(self._sum(some, which, position) for some in alike)  # type: ignore[assignment]
            if not totals:
                return {}
            found = self._torch.stack(list(totals.values())).tolist()
        return {kind: int(total) % (1 << 64) for kind, total in zip(totals, found, strict=True)}

    def after(self, event: object) -> None:
        """The stream waits for it, nobody else."""
        self._at.after(event)

    def done(self) -> None:
        """Wait for the stream."""
        self._at.done()
        self._mine.ids = None

    def _unpack(self, segment: Segment, which: "Tensor", packed: Buffer) -> None:
        strip = segment.strip
        region, whole = self._bytes[strip.dst_index], self._flat(packed)
        for copy in strip.copies:
            word = _word(region, whole, strip.dst_step, strip.bytes, copy.dst_offset, copy.dst_stride, copy)
            inner = _inner(copy, copy.dst_stride, word)
            items = self._strided(
                region, word, (self.regions[strip.dst_index].items, strip.dst_step), copy.dst_offset, inner
            )
            rows = self._strided(whole, word, (len(which), strip.bytes), copy.at, _inner(copy, copy.length, word))
            items.index_copy_(0, which, rows)

    def _alike(self, part: Part, what: tuple[str, Verify, Side]) -> list[Sampled]:
        """The samples of a kind, those together that are summed by the same calls."""
        groups: dict[tuple[Any, ...], list[tuple[Tensor, U64]]] = defaultdict(list)
        for number, sample in enumerate(samples(part, *what)):
            words = self._pieces(sample)
            apart = number if what[1] == "full" else -1
            groups[apart, words.dtype, words.shape[1:]].append((words, sample.weight))
        return [
            Sampled([words for words, _ in some], self._carried(np.stack([weight for _, weight in some])))
            for some in groups.values()
        ]

    def _pieces(self, sample: Sample) -> "Tensor":
        """A sample's words in all items of the region, in pieces that torch can read where a region begins at an odd
        address or its items are an odd distance apart."""
        region = self._bytes[sample.region]
        piece = math.gcd(sample.word, sample.step, region.data_ptr(), region.storage_offset())
        inner = (*sample.shape, sample.word // piece), (*sample.strides, piece)
        items = self.regions[sample.region].items
        return self._strided(region, piece, (items, sample.step), sample.offset, inner)

    def _sum(self, some: Sampled, which: "Tensor", position: "Tensor") -> "Tensor":
        torch, size, pieces = self._torch, some.words[0].element_size(), some.words[0].shape[-1]
        entries, each = some.weight.shape
        shifts = torch.arange(pieces, device=self._device) * (8 * size)
        total: Tensor = torch.zeros((), dtype=torch.int64, device=self._device)
        many = max(1, AT_ONCE // (len(which) * each * pieces * 8)) if entries > 1 else 1
        for first in range(0, entries, many):
            group, weight = some.words[first : first + many], some.weight[first : first + many]
            cuts = steps(len(which), each * pieces * 8) if entries == 1 else range(0, len(which), len(which))
            for at in cuts:
                ids = which[at : at + cuts.step]
                found = torch.stack([words.index_select(0, ids) for words in group])
                found = found.reshape(len(group), len(ids), each, pieces).to(torch.int64)
                if size < 8:  # torch has no unsigned words
                    found = (found & (1 << 8 * size) - 1) << shifts
                rows = (found.sum(3) * weight[:, None, :]).sum((0, 2))
                total += (rows * position[at : at + cuts.step]).sum()
        return total

    def _region(self, number: int, tensors: "Sequence[Tensor] | None") -> "Tensor":
        region = self.regions[number]
        buffer = Buffer(region.base, region.nbytes, None)
        if tensors is None or not buffer.nbytes:
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
        """The ids on the device: copied once, until `done`, for all that this thread asks with the same ones."""
        held: tuple[Column, Tensor] | None = getattr(self._mine, "ids", None)
        if held is None or held[0] is not ids:
            held = self._mine.ids = ids, self._carried(ids)
        return held[1]

    def _weights_of_positions(self, count: int) -> "Tensor":
        """Those of a longer list begin as those of a shorter one."""
        held = self._positions
        if held is None or len(held) < count:
            self._positions = held = self._carried(positions(1 << (count - 1).bit_length()))
        return held[:count]

    def _carried(self, numbers: Column | U64) -> "Tensor":
        return self._at.carried(numbers.view(np.int64))

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._torch.inference_mode(False), self._torch.no_grad(), self._at.side():
            yield


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
