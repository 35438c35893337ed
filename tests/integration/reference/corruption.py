"""A fabric of the sending side that damages chosen bytes in flight."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.link import make_fabric
from pdctl.engines.reference.pools import Buffer, Key
from pdctl_transfer.fabric.base import Blocks


class Damage:
    """Which bytes of each item of one buffer of rank 0 are damaged; `rows` and `units` choose from the item's axes."""

    def __init__(self, key: Key, *, rows: Any = slice(None), units: Any = slice(None), bit: int = 0) -> None:
        self.key, self.rows, self.units, self.bit = key, rows, units, bit

    def mask(self, buffer: Buffer, shape: tuple[int, ...]) -> Any:
        """What to xor into an item: it doubles or halves a float64, and changes one bit of an int64."""
        outer, units, *_ = shape
        flips = np.zeros((outer, units, buffer.inner_bytes // 8, 8), dtype=np.uint8)
        byte, flip = (6, 0x10) if buffer.dtype.is_floating_point else (0, 1 << self.bit)
        flips[self.rows, self.units, :, byte] = flip
        return flips.reshape(-1)


class DamagingFabric:
    """Passes everything on to the real fabric, and after each write damages what belongs to one buffer."""

    def __init__(self, inner: Any, base: int, size: int, mask: Any) -> None:
        self._inner, self._base, self._end, self._mask = inner, base, base + size, mask
        self.damaged = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def begin(self, peer: Any, blocks: Blocks) -> Any:
        writing = self._inner.begin(peer, blocks)
        look = writing.look

        def damaging() -> Any:
            result = look()
            if result is not None:
                self._damage(blocks)
            return result

        writing.look = damaging
        return writing

    def _damage(self, blocks: Blocks) -> None:
        for src, dst, length in zip(*(column.tolist() for column in blocks), strict=True):
            low, high = max(src, self._base), min(src + length, self._end)
            if low < high:
                landed = (ctypes.c_uint8 * (high - low)).from_address(dst + low - src)
                view = np.frombuffer(landed, dtype=np.uint8)
                flips = self._mask[(np.arange(low, high) - self._base) % len(self._mask)]
                self.damaged += int(np.count_nonzero(flips))
                np.bitwise_xor(view, flips, out=view)


def damaging(damage: Damage, made: list[DamagingFabric]) -> Callable[[Engine], DamagingFabric]:
    """For `pair(prefill_fabric=…)`; the fabric is appended to `made`."""

    def make(engine: Engine) -> DamagingFabric:
        pools = engine.groups[0].pools[0][0]
        tensor = pools[damage.key]
        buffer = next(buffer for buffer in pools.buffers if buffer.key == damage.key)
        mask = damage.mask(buffer, tuple(tensor.shape[1:]))
        made.append(DamagingFabric(make_fabric(engine.options), tensor.data_ptr(), tensor.nbytes, mask))
        return made[-1]

    return make
