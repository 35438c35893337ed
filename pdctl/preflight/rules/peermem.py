"""PD2010: adapters can reach GPU memory: nvidia_peermem is loaded, or the driver can export dma-buf.

Without either, registering a CUDA buffer ends with `Bad address [14]`. A working gdrcopy is no proof. GPUs that no
module helps are PD2024's.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import integrated
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped

PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host with NVIDIA GPUs of their own memory that transfers over RDMA."""
    for want, facts in over_rdma(snapshot):
        if not any(gpu.vendor == "nvidia" and integrated(gpu) is None for gpu in facts.host.gpus):
            continue
        if want.host_buffers:
            yield Held("peer-memory", label(want.host), f"not needed: {want.host_buffers}")
            continue
        if facts.host.modules is None:
            yield Skipped("peer-memory", label(want.host), "the list of kernel modules could not be read")
            continue
        loaded = [name for name in PEER_MEMORY if name in facts.host.modules]
        driver = facts.nvidia_driver or "unknown"
        if loaded:
            yield Held("peer-memory", label(want.host), f"{loaded[0]} is loaded")
        elif driver.startswith("open"):
            yield Held("peer-memory", label(want.host), f"NVIDIA driver {driver}: its open modules export dma-buf")
        else:
            evidence = (Evidence("/proc/modules", "no nvidia_peermem"), Evidence("NVIDIA driver", driver))
            yield Finding("PD2010", label(want.host), evidence, {"driver": driver})
