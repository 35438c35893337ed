"""From an engine's tensors to the copier of a rank: which storage holds which region, and on what device it lies."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.torch_copier import TorchCopier

if TYPE_CHECKING:
    from torch import Tensor

DEPTH: Final = 8
"""Pools within pools, lists of tensors in them: an engine's nest no deeper."""


def copier_for(pools: object, regions: Sequence[Region], device: object) -> Copier | None:
    """The copier of a rank whose memory is its engine's tensors; None on the CPU, where the core needs none.

    pools: whatever holds the tensors (`tensors_of`); device: where they lie, as torch or as a string. The regions need
    not say where they are: give the peer `copier.regions`, which do. Raises TransferError PD2310 where no tensor's
    storage holds a region, PD4016 where there is no way to copy on such a device.
    """
    where = place(device)
    if where == CPU:
        return None
    return torch_copier(pools, [replace(region, where=where) for region in regions])


def torch_copier(pools: object, regions: Sequence[Region]) -> TorchCopier:
    """Torch as copier, on any device. Raises as `copier_for`."""
    by_size = sorted(tensors_of(pools), key=lambda tensor: tensor.untyped_storage().nbytes())
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in by_size}
    bases = sorted(storages)
    return TorchCopier(regions, [_bytes(storages, bases, number, region) for number, region in enumerate(regions)])


def place(device: object) -> str:
    """A device in the words of `Region.where`: "cpu", "cuda:1". One without a number is the one that torch uses now."""
    import torch

    found = torch.device(device)  # type: ignore[call-overload]
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return str(found)


def tensors_of(pools: object) -> "Iterator[Tensor]":
    """All tensors in lists, tuples and dicts, and in the attributes of objects (SGLang's pools), or a tensor itself."""
    import torch

    seen: set[int] = set()

    def within(held: object, depth: int) -> "Iterator[Tensor]":
        if depth > DEPTH or id(held) in seen:
            return
        if isinstance(held, torch.Tensor):
            if held.untyped_storage().nbytes():
                yield held
            return
        seen.add(id(held))
        for part in _parts(held):
            yield from within(part, depth + 1)

    return within(pools, 0)


def _parts(held: object) -> Iterable[Any]:
    """What an object holds; of what is no container and has no attributes nothing."""
    if isinstance(held, Mapping):
        return held.values()
    if isinstance(held, list | tuple):
        return held
    if isinstance(held, type | ModuleType):
        return ()
    slots = chain.from_iterable(getattr(kind, "__slots__", ()) for kind in type(held).__mro__)
    named = [getattr(held, name, None) for name in slots if isinstance(name, str) and not name.startswith("__")]
    return [*getattr(held, "__dict__", {}).values(), *named]


def _bytes(storages: "dict[int, Tensor]", bases: list[int], number: int, region: Region) -> "Tensor":
    """The region's bytes, of the storage that holds them; none, of no storage, where it is empty."""
    import torch

    if not region.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    at = bisect_right(bases, region.base) - 1
    tensor = storages[bases[at]] if at >= 0 else None
    storage = tensor.untyped_storage() if tensor is not None else None
    if tensor is None or storage is None or region.base + region.nbytes > storage.data_ptr() + storage.nbytes():
        cause = f"no tensor holds region {number}: {region.nbytes} bytes at {region.base:#x}"
        raise TransferError(cause, code="PD2310")
    if place(tensor.device) != region.where:
        cause = f"region {number} should lie on {region.where}, its tensor lies on {tensor.device}"
        raise TransferError(cause, code="PD2310")
    with torch.inference_mode(False):
        empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        flat: Tensor = empty.set_(storage, region.base - storage.data_ptr(), (region.nbytes,), (1,))
    return flat
