"""PD2024: a GPU without memory of its own is not asked for what it cannot do, and transfers know that it cannot.

DGX Spark (GB10) and Jetson Thor: neither nvidia_peermem nor dma-buf brings an adapter to what `cudaMalloc` returned,
whatever modules are loaded. Host buffers work.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import integrated
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a pool and host with such a GPU that transfers over RDMA."""
    for want, facts in over_rdma(snapshot):
        found = [(gpu, name) for gpu in facts.host.gpus if (name := integrated(gpu)) is not None]
        if not found:
            continue
        names = ", ".join(dict.fromkeys(name for _, name in found))
        if want.host_buffers:
            yield Held("integrated", label(want.host), f"{names} has no memory of its own; {want.host_buffers}")
            continue
        evidence = tuple(Evidence(gpu.pci, f"{name}, device {gpu.device or 'unknown'}") for gpu, name in found)
        yield Finding("PD2024", label(want.host), evidence, {"gpu": names, "backend": want.backend})
