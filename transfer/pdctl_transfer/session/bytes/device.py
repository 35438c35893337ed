"""The seam between torch as copier and the device: streams, events, and how numbers get there. On the CPU all of it is
nothing, since the CPU has done it when it returns."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError

if TYPE_CHECKING:
    from torch import Tensor

KINDS: Final = ("cpu", "cuda")


class Device(Protocol):
    """Where a copier works. All methods may be called from any thread."""

    def side(self) -> AbstractContextManager[Any]:
        """What is asked of torch within goes beside what the engine has asked for, in order."""
        ...

    def carried(self, numbers: NDArray[np.int64]) -> "Tensor":
        """A copy of the numbers there, for what is asked for within `side`; nobody waits for it."""
        ...

    def after(self, event: object) -> None:
        """What is asked for within `side` from now on begins when this event of the engine's has happened."""
        ...

    def done(self) -> None:
        """Return when all that was asked for within `side` until now is done, and every event given has happened."""
        ...


class Cpu:
    """In order by itself."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def side(self) -> AbstractContextManager[Any]:
        """Nothing to enter."""
        return nullcontext()

    def carried(self, numbers: NDArray[np.int64]) -> "Tensor":
        """Copied when this returns."""
        made: Tensor = self._torch.tensor(numbers)
        return made

    def after(self, event: object) -> None:
        """Whoever has an event of the CPU has waited for it."""

    def done(self) -> None:
        """At once."""


class Cuda:
    """One GPU, and a stream of this copier's own. The NIC and the engine's streams know nothing of that stream: what
    they wait for is the event of `done`, for which the waiting thread sleeps."""

    def __init__(self, torch: Any, where: str) -> None:
        self._torch, self._where = torch, torch.device(where)
        self._stream: Any = torch.cuda.Stream(self._where)

    def side(self) -> AbstractContextManager[Any]:
        """The stream, and its GPU as the thread's."""
        side: AbstractContextManager[Any] = self._torch.cuda.stream(self._stream)
        return side

    def carried(self, numbers: NDArray[np.int64]) -> "Tensor":
        """By way of pinned memory, which torch keeps until the copy has happened."""
        pinned = self._torch.tensor(numbers).pin_memory()
        made: Tensor = pinned.to(self._where, non_blocking=True)
        return made

    def after(self, event: object) -> None:
        """The stream waits, this thread does not."""
        self._stream.wait_event(event)

    def done(self) -> None:
        """By an event of this moment."""
        with self.side():
            now = self._torch.cuda.Event(blocking=True)
            now.record(self._stream)
        now.synchronize()


def device_of(torch: Any, where: str) -> Device:
    """The device of this name ("cpu", "cuda:0"). Raises TransferError PD4016 where there is no way to reach it."""
    kind = torch.device(where).type
    if kind not in KINDS:
        raise TransferError(f"no copier for memory on {where}", code="PD4016")
    return Cpu(torch) if kind == "cpu" else Cuda(torch, where)
