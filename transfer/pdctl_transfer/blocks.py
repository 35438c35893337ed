"""What plans become and fabrics move."""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Blocks(NamedTuple):
    """Contiguous copies, as columns of absolute addresses and lengths in bytes, int64 arrays of shape [n]: block i is
    length[i] bytes from src[i] to dst[i]."""

    src: "NDArray[np.int64]"
    dst: "NDArray[np.int64]"
    length: "NDArray[np.int64]"
