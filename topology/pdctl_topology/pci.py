"""PCI paths, and how far two devices are from each other, in the words of `nvidia-smi topo -m`."""

import re
from enum import IntEnum

from .tree import Tree

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_STEP = re.compile(rf"{_ADDRESS.pattern}|pci[0-9a-f]{{4,}}:[0-9a-f]{{2}}")


class Distance(IntEnum):
    """Nearest first, as NVML orders its common ancestors."""

    PIX = 0
    """At most a single PCIe switch between them."""
    PXB = 1
    """Several PCIe bridges, all below one host bridge's port."""
    PHB = 2
    """Through the host bridge."""
    NODE = 3
    """Between host bridges of one NUMA node."""
    SYS = 4
    """Between NUMA nodes."""
    UNKNOWN = 5
    """One of them is virtual, or says neither its path nor its node."""


def pci_path(tree: Tree, path: str) -> tuple[str, ...]:
    """Steps from the host bridge to the device that `path` leads to; empty for a virtual device."""
    real = tree.real(path)
    return tuple(step for step in (real or "").split("/") if _STEP.fullmatch(step))


def distance(
    first: tuple[str, ...], first_numa: int | None, second: tuple[str, ...], second_numa: int | None
) -> Distance:
    """Distance of two devices by their PCI paths, by their NUMA nodes where they share no host bridge."""
    shared = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        shared += 1
    if shared >= 2:
        # below a common port: each side's own bridge and the device itself are one switch away
        below = max(len(first), len(second)) - shared
        return Distance.PIX if below <= 2 else Distance.PXB
    if shared == 1:
        return Distance.PHB
    if first_numa is None or second_numa is None:
        return Distance.UNKNOWN
    return Distance.NODE if first_numa == second_numa else Distance.SYS


def numa_of(tree: Tree, path: str) -> int | None:
    """NUMA node of a device; None where the machine does not say (-1 on those with one node)."""
    text = tree.read(path)
    return int(text) if text is not None and text.isdigit() else None
