"""Memory that is large to whoever writes it and small to the machine: a few MiB, mapped many times in a row.

A request of gigabytes takes as long on the wire as gigabytes do, and every byte that lands anywhere is seen by looking
at the few MiB.
"""

import ctypes
import mmap
import os

import numpy as np

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 0x01, 0x02, 0x10, 0x20, 0x4000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Aliased:
    """`nbytes` of address space from `base` on, made of one piece of `period` bytes again and again."""

    def __init__(self, nbytes: int, period: int) -> None:
        assert nbytes % period == 0
        assert period % mmap.PAGESIZE == 0
        self.nbytes = nbytes
        self._piece = os.memfd_create("aliased")
        os.ftruncate(self._piece, period)
        self.base = map_memory(None, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)
        for at in range(self.base, self.base + nbytes, period):
            map_memory(at, period, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, self._piece)
        self.period = np.ctypeslib.as_array((ctypes.c_uint8 * period).from_address(self.base))
        """What every piece holds, uint8 of shape [period]."""

    def array(self, item_len: int) -> np.ndarray:
        """The whole of it as items, uint8 of shape [nbytes / item_len, item_len]."""
        whole = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.base))
        return whole.reshape(-1, item_len)


def map_memory(at: int | None, nbytes: int, protection: int, flags: int, file: int) -> int:
    """mmap(2) itself: Python's own has no address. OSError where it fails."""
    found = _libc.mmap(at, nbytes, protection, flags, file, 0)
    if found in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    return int(found)
