"""Memory as a GPU's is to the CPU: addresses that it must not touch, while the fabric reaches what is behind them."""

import ctypes
import os
from dataclasses import dataclass, field

import numpy as np

from pdctl_transfer.fabric.base import Blocks
from pdctl_transfer.fabric.memory import MemoryFabric, MemoryWriting
from pdctl_transfer.session import Region
from tests.integration.transfer.aliased import MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE, map_memory
from tests.unit.transfer_session.world import Buffers

DEVICE = "cuda:0"
_behind: list[tuple[int, int, int]] = []
"""Base that the core is given, size, and where the fabric finds the bytes."""


def device_memory(nbytes: int) -> tuple[int, np.ndarray]:
    """An address of which every use by the CPU is a fault, and the bytes behind it, uint8 of shape [nbytes]."""
    file = os.memfd_create("device")
    os.ftruncate(file, nbytes)
    base = map_memory(None, nbytes, PROT_NONE, MAP_SHARED, file)
    behind = map_memory(None, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file)
    os.close(file)
    _behind.append((base, nbytes, behind))
    return base, np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(behind))


@dataclass
class DeviceBuffers(Buffers):
    """A rank's memory on a device."""

    bases: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arrays, self.bases = [], []
        for _, entry in self.entries():
            base, behind = device_memory(self.items * entry.item_len)
            self.bases.append(base)
            self.arrays.append(behind.reshape(self.items, entry.item_len))

    def regions(self) -> list[Region]:
        pairs = zip(self.bases, self.arrays, strict=True)
        return [Region(base, len(array), array.shape[1], where=DEVICE) for base, array in pairs]


class DeviceFabric(MemoryFabric):
    """Reaches behind device addresses, as a NIC does."""

    def register(self, base: int, nbytes: int, where: str = "cpu") -> None:
        super().register(base, nbytes)
        super().register(int(_reached(np.array([base]))[0]), nbytes)

    def begin(self, peer: MemoryFabric, blocks: Blocks) -> MemoryWriting:
        return super().begin(peer, Blocks(_reached(blocks.src), _reached(blocks.dst), blocks.length))


def _reached(addresses: np.ndarray) -> np.ndarray:
    found = addresses.copy()
    for base, nbytes, behind in _behind:
        found = np.where((addresses >= base) & (addresses < base + nbytes), addresses - base + behind, found)
    return found
