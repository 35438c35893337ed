"""NIXL's kinds of memory: DRAM, and VRAM of a numbered GPU. Each block says of which it is, on both sides, and a
transfer has one kind a side; so a peer is told where memory lies that is not DRAM, with the agent's metadata."""

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.errors import FabricError
from pdctl_transfer.region import CPU

Kind = Literal["DRAM", "VRAM"]
Column = NDArray[np.int64]
MARK: Final = b"pdctl memory "
"""Before metadata that comes with places; NIXL's own begins otherwise."""


class Span(Struct, frozen=True, array_like=True):
    """Registered memory of a GPU."""

    base: int
    nbytes: int
    device: int


class Told(Struct, frozen=True, array_like=True):
    """An agent's metadata, and its memory that is not DRAM."""

    metadata: bytes
    spans: tuple[Span, ...]


def memory_of(where: str) -> tuple[Kind, int]:
    """NIXL's kind of memory and number of the device for the words of `Region.where`. FabricError PD4014 for a place of
    which NIXL has no kind."""
    if where == CPU:
        return "DRAM", 0
    name, _, number = where.partition(":")
    if name != "cuda" or not (number or "0").isdigit():
        raise FabricError(f"NIXL has no kind of memory for {where}", code="PD4014")
    return "VRAM", int(number or 0)


class Places:
    """Where an agent's memory lies. Never changed: `adding` and `without` make another."""

    def __init__(self, spans: tuple[Span, ...] = ()) -> None:
        self.spans = tuple(sorted(spans, key=lambda span: span.base))

    def __bool__(self) -> bool:
        return bool(self.spans)

    def adding(self, span: Span) -> "Places":
        """With one more."""
        return Places((*self.spans, span))

    def without(self, base: int) -> "Places":
        """With none at this base."""
        return Places(tuple(span for span in self.spans if span.base != base))

    def devices(self, addresses: Column) -> Column:
        """The GPU of each address, -1 for DRAM."""
        found = np.full(len(addresses), -1, dtype=np.int64)
        for span in self.spans:
            found[(addresses >= span.base) & (addresses < span.base + span.nbytes)] = span.device
        return found


def told(metadata: bytes, places: Places) -> bytes:
    """What a peer is sent: the metadata alone where all is DRAM, as agents do that know of nothing else."""
    return MARK + msgspec.msgpack.encode(Told(metadata, places.spans)) if places else metadata


def heard(address: bytes) -> tuple[bytes, Places]:
    """What a peer has sent. FabricError PD4011 where it is neither."""
    if not address.startswith(MARK):
        return address, Places()
    try:
        found = msgspec.msgpack.decode(address[len(MARK) :], type=Told)
    except msgspec.MsgspecError as error:
        raise FabricError(f"not the address of a NIXL peer: {error}", code="PD4011") from error
    return found.metadata, Places(found.spans)


class Described(Struct, frozen=True):
    """One side of blocks, as NIXL takes them: uint64 of shape [n][address, length, device]."""

    kind: Kind
    rows: Any


def described(addresses: Column, lengths: Column, devices: Column) -> Described:
    """One side of blocks that are all of one kind of memory."""
    rows = np.stack([addresses, lengths, np.maximum(devices, 0)], axis=1).astype(np.uint64)
    return Described("VRAM" if len(devices) and devices[0] >= 0 else "DRAM", rows)


def both_sides(blocks: Blocks, here: Places, there: Places) -> tuple[Described, Described]:
    """Blocks that are all of one kind of memory on each side."""
    return (
        described(blocks.src, blocks.length, here.devices(blocks.src)),
        described(blocks.dst, blocks.length, there.devices(blocks.dst)),
    )


def alike(blocks: Blocks, here: Places, there: Places) -> Iterator[Blocks]:
    """The blocks, those together that are of one kind of memory on each side."""
    if not here and not there:
        yield blocks
        return
    kinds = 2 * (here.devices(blocks.src) >= 0) + (there.devices(blocks.dst) >= 0)
    for kind in np.unique(kinds).tolist():
        yield Blocks(*(column[kinds == kind] for column in blocks))
