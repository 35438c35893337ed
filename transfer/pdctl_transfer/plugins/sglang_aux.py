"""A request's metadata rows: the first token and what else SGLang writes into its metadata buffers, as bytes and back.

A room's row stands in each buffer at one index, which is another on each side. The core carries them as the room's
metadata, each with its length, so that two sides with other buffers are told apart and not written over each other.
"""

import ctypes
from collections.abc import Sequence

import msgspec

from pdctl_transfer.errors import TransferError


class Rows:
    """The metadata buffers of one engine: where they begin, their bytes, and the bytes of a row in each."""

    def __init__(self, bases: Sequence[int], lengths: Sequence[int], row_lengths: Sequence[int]) -> None:
        self._buffers = tuple(zip(bases, row_lengths, strict=True))
        self._rows = min((length // row for length, row in zip(lengths, row_lengths, strict=True) if row), default=0)

    def pack(self, index: int) -> bytes:
        """The rows at this index. IndexError where there is none."""
        self._look(index)
        return msgspec.msgpack.encode([ctypes.string_at(base + row * index, row) for base, row in self._buffers])

    def unpack(self, index: int, packed: bytes) -> None:
        """Write what `pack` gave on the other side. TransferError PD3142 where its buffers are not like these."""
        self._look(index)
        try:
            rows = msgspec.msgpack.decode(packed, type=list[bytes])
        except msgspec.MsgspecError as error:
            raise TransferError(f"no metadata rows: {error}", code="PD3142") from error
        theirs, ours = [len(row) for row in rows], [row for _, row in self._buffers]
        if theirs != ours:
            raise TransferError(f"metadata rows of {theirs} bytes from prefill, {ours} on decode", code="PD3142")
        for (base, length), row in zip(self._buffers, rows, strict=True):
            ctypes.memmove(base + length * index, row, length)

    def _look(self, index: int) -> None:
        if not 0 <= index < self._rows:
            raise IndexError(f"metadata row {index} of {self._rows}")
