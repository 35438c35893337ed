"""Faults inside an engine under test, asked for by files, so that no product code knows of them.

In the folder TEST_FAULTS names a test puts a file with the name of a fault; whichever process of the engines
comes to the place first takes the file away, and has the fault. Without files nothing is changed but where to look.

flip    one byte of what a write brought is another one when it has landed
slow    each write, until the file is gone, takes as many seconds longer as the file says; `slowed` is there then
gather, scatter, sums, send, ask
        a defect: that part of the core raises what nobody raises
"""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

folder = os.environ.get("TEST_FAULTS", "")


class Defect(Exception):
    """What no part of the core expects."""


def taken(name: str) -> bool:
    """Whether the fault is asked for, and is this process's."""
    try:
        (Path(folder) / name).unlink()
    except OSError:
        return False
    return True


def raising(owner: type, method: str, name: str) -> None:
    """Have the method raise a defect when the fault is asked for."""
    right = getattr(owner, method)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        if taken(name):
            raise Defect(f"asked for by a test: {name}")
        return right(*args, **kwargs)

    setattr(owner, method, wrong)


def slow() -> float:
    """Seconds that each write takes longer now."""
    try:
        return float((Path(folder) / "slow").read_text() or 0)
    except (OSError, ValueError):
        return 0.0


class Faulty:
    """A write that goes on longer, or has one byte changed once it is over: on this machine, in the peer's memory."""

    def __init__(self, writing: Any, flip: Callable[[], None]) -> None:
        extra = slow()
        self._writing, self._flip, self._until = writing, flip, time.monotonic() + extra
        if extra:
            (Path(folder) / "slowed").touch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writing, name)

    def look(self) -> Any:
        if time.monotonic() < self._until:
            return None
        result = self._writing.look()
        if result is not None and result.ok and taken("flip"):
            self._flip()
        return result

    def rest(self, deadline: Any) -> None:
        if time.monotonic() < self._until:
            time.sleep(0.005)
        else:
            self._writing.rest(deadline)


def faulty_writes(module: ModuleType) -> None:
    """Both faults of writes, in the fabric's own class."""
    owner = next(value for name, value in vars(module).items() if name in ("MooncakeFabric", "NixlFabric"))
    right = owner.begin

    def begin(self: Any, peer: Any, blocks: Any) -> Any:
        def flip() -> None:
            middle = len(blocks.length) // 2
            src, dst = int(blocks.src[middle]), int(blocks.dst[middle])
            FLIPPED[:] = bytes([ctypes.c_uint8.from_address(src).value ^ 0xFF])
            other = type(blocks)(*(column[:1].copy() for column in blocks))
            other.src[0], other.dst[0], other.length[0] = address(self), dst, 1
            done = right(self, peer, other)
            while done.look() is None:
                time.sleep(0.001)

        return Faulty(right(self, peer, blocks), flip)

    owner.begin = begin


FLIPPED = bytearray(1)
_registered: dict[int, tuple[int, Any]] = {}


def address(fabric: Any) -> int:
    """Where the changed byte lies, in memory that this fabric knows."""
    if id(fabric) not in _registered:
        page = (ctypes.c_uint8 * 4096)()
        fabric.register(ctypes.addressof(page), 4096)
        _registered[id(fabric)] = ctypes.addressof(page), page
    at, page = _registered[id(fabric)]
    page[0] = FLIPPED[0]
    return at


def faulty_copies(module: ModuleType) -> None:
    for method in ("gather", "scatter", "sums"):
        raising(module.NumpyCopier, method, method)


AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "pdctl_transfer.fabric.mooncake": faulty_writes,
    "pdctl_transfer.fabric.nixl": faulty_writes,
    "pdctl_transfer.session.bytes.copier": faulty_copies,
    "pdctl_transfer.session.prefill": lambda module: raising(module.PrefillPeer, "open", "send"),
    "pdctl_transfer.session.decode": lambda module: raising(module.DecodePeer, "open", "ask"),
}
