"""The receiver's look at what landed, before it confirms."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.options import Verify


def verify(
    sent: Iterable[tuple[Part, dict[str, int]]],
    copier: Copier,
    indices: Mapping[str, NDArray[np.int64]],
    how: Verify,
) -> str:
    """What differs from what the sources said they wrote; empty where nothing does. Raises as `Copier.sums`."""
    if how == "none":
        return ""
    for part, expected in sent:
        found = copier.sums(part, indices, how, "decode")
        for kind, value in found.items():
            if kind not in expected:
                return f"{kind}: {part.source} sent no checksum of it"
            if expected[kind] != value:
                return f"{kind}: what landed is not what {part.source} sent"
    return ""
