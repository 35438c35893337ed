"""The memory of one entry of a layout, in one rank."""

from typing import Final

from msgspec import Struct

CPU: Final = "cpu"


class Region(Struct, frozen=True):
    """The memory of one entry: `items` items of `item_len` bytes, the first at address `base`.

    stride: bytes from the beginning of an item to that of the next; 0: they follow each other without a gap. What lies
    between two items is somebody else's, and never touched.
    where: "cpu", or the device that it lies on ("cuda:0"), to which the CPU cannot read or write: only the device and
    the NIC can. An address the CPU can use is "cpu", wherever the bytes are.
    """

    base: int
    items: int
    item_len: int
    where: str = CPU
    stride: int = 0

    @property
    def step(self) -> int:
        """Bytes from item to item."""
        return self.stride or self.item_len

    @property
    def nbytes(self) -> int:
        """Bytes from the first item's first to the last item's last."""
        return (self.items - 1) * self.step + self.item_len if self.items else 0
