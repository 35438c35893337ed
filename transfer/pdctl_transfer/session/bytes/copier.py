"""Who copies and sums in a rank's memory: the CPU, a device (`torch_copier.py`), or nobody.

Not all memory is the CPU's: a GPU's can be read and written by the GPU and by the NIC alone. So whatever touches bytes
asks the rank's copier, and what a copier cannot do is refused with a code and never tried. Direct writes need none.
"""

from collections.abc import Mapping, Sequence
from typing import NoReturn, Protocol

import numpy as np

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.region import CPU, Region
from pdctl_transfer.session.bytes import checksum, copying
from pdctl_transfer.session.bytes.copying import Buffer, Lot, Memory
from pdctl_transfer.session.bytes.packing import Column, Segment
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Verify


class Copier(Protocol):
    """Copies and sums in one rank's regions. All methods may be called from any thread.

    Raises TransferError PD4016 from whatever it cannot do; where `can_copy` is False that is everything but `done`.
    """

    @property
    def regions(self) -> tuple[Region, ...]:
        """The rank's memory, one region an entry of its stage."""
        ...

    @property
    def where(self) -> str:
        """Where `allocate` finds memory, in the words of `Region.where`."""
        ...

    @property
    def can_copy(self) -> bool:
        """Whether it gathers, scatters and sums at all."""
        ...

    def allocate(self, nbytes: int) -> Buffer:
        """New memory, for packed rows. FabricError PD4014 where there is not so much."""
        ...

    def gather(self, segment: Segment, ids: Column, into: Buffer) -> None:
        """Pack a segment of the source's items, those with the ids of its kind, into its place in a chunk, which begins
        at `into`. Over when `done` has returned."""
        ...

    def scatter(self, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> None:
        """Unpack chunks into the items they fill, or one of `parts` equal shares of their items. Over, so that the
        chunks' memory may be lent again, when `done` has returned."""
        ...

    def sums(self, part: Part, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
        """Of each kind, the checksum over what the part's source writes into its destination, as `side` holds it."""
        ...

    def after(self, event: object) -> None:
        """What is asked for from now on, by any thread, begins when this event of the engine's device has happened: the
        step that computes what is sent, say. `done` waits for it as well. Where the CPU copies, nothing."""
        ...

    def done(self) -> None:
        """Wait until all that this thread asked for is done: before what was gathered is written, before memory that
        was scattered is lent again, before a request is confirmed."""
        ...


class NumpyCopier:
    """The CPU, in memory that it reaches. Raises TransferError PD4016 for other memory."""

    can_copy = True
    where = CPU

    def __init__(self, regions: Sequence[Region]) -> None:
        for number, region in enumerate(regions):
            if region.where != CPU:
                raise _out_of_reach(f"region {number} lies on {region.where}")
        self.memory = Memory(regions)

    @property
    def regions(self) -> tuple[Region, ...]:
        """As given."""
        return self.memory.regions

    def allocate(self, nbytes: int) -> Buffer:
        """Of the heap, touched by the first use."""
        try:
            owner = np.empty(nbytes, dtype=np.uint8)
        except MemoryError as error:
            raise FabricError(f"no memory for {nbytes} bytes: {error}", code="PD4014") from error
        return Buffer(owner.ctypes.data, nbytes, owner)

    def gather(self, segment: Segment, ids: Column, into: Buffer) -> None:
        """See `copying.gather`."""
        copying.gather(self.memory, segment, ids, into)

    def scatter(self, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> None:
        """See `copying.scatter`."""
        copying.scatter(self.memory, lots, part, parts)

    def sums(self, part: Part, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
        """See `checksum.sums`."""
        return checksum.sums(part, self.memory, indices, how, side)

    def after(self, event: object) -> None:
        """Nothing: there are no events in the CPU's memory."""

    def done(self) -> None:
        """At once: the CPU has done it when it returns."""


class NoCopier:
    """Nobody: memory that the CPU cannot reach, of an engine that gave no copier. All it allows is direct writes."""

    can_copy = False
    where = CPU

    def __init__(self, regions: Sequence[Region]) -> None:
        self.regions = tuple(regions)

    def allocate(self, nbytes: int) -> NoReturn:
        """Refused: nothing could be copied from there, or to there."""
        self._refuse("memory for packed rows")

    def gather(self, segment: Segment, ids: Column, into: Buffer) -> NoReturn:
        """Refused."""
        self._refuse("gathering")

    def scatter(self, lots: Sequence[Lot], part: int = 0, parts: int = 1) -> NoReturn:
        """Refused."""
        self._refuse("scattering")

    def sums(self, part: Part, indices: Mapping[str, Column], how: Verify, side: Side) -> dict[str, int]:
        """Refused, unless no sums are wanted."""
        if how != "none":
            self._refuse("a checksum")
        return {}

    def after(self, event: object) -> NoReturn:
        """Refused: what is written straight could not wait for it."""
        self._refuse("waiting for the device")

    def done(self) -> None:
        """At once: nothing was begun."""

    def _refuse(self, what: str) -> NoReturn:
        places = sorted({region.where for region in self.regions})
        raise _out_of_reach(f"{what} was asked for in memory on {', '.join(places)}")


def default_copier(regions: Sequence[Region]) -> Copier:
    """The CPU where it reaches all of the regions, nobody where it does not."""
    return NumpyCopier(regions) if all(region.where == CPU for region in regions) else NoCopier(regions)


def copier_of(given: Copier | None, regions: tuple[Region, ...], verify: Verify, whose: str) -> Copier:
    """The copier of a rank, `whose` in messages: the one that its engine gave, or `default_copier`.

    Raises TransferError PD4022 where the given one has other regions, PD4016 where `verify` needs one that can copy.
    """
    if given is not None and tuple(given.regions) != regions:
        raise TransferError(f"{whose}: the copier was made for other regions", code="PD4022")
    copier = given or default_copier(regions)
    if verify != "none" and not copier.can_copy:
        places = ", ".join(sorted({region.where for region in regions}))
        raise _out_of_reach(f"{whose}: verify is {verify!r}, its memory lies on {places} and it was given no copier")
    return copier


def _out_of_reach(cause: str) -> TransferError:
    return TransferError(f"{cause}; the CPU cannot reach it", code="PD4016")
