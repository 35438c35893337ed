"""What was read of one host, decoded and frozen. Fields are None where nothing could be read: unknown, not absent."""

import math
from collections.abc import Mapping

from msgspec import Struct

from pdctl_topology import Choice, Gpu, Host, choose

IPC_LOCK = 14
"""Number of the capability that lifts the limit on locked memory (capabilities(7))."""
NO_CGROUP_LIMIT = 1 << 60
ENGINES_RUN_ON = ("nvidia", "amd", "ascend", "intel")
"""Vendors of accelerators; a host's graphics are of the last as often as not."""


class Distribution(Struct, frozen=True):
    """An installed package."""

    name: str
    version: str
    source: str
    """`index`, or the URL or file that it was installed from."""


class Ucx(Struct, frozen=True):
    """The UCX that a NIXL wheel brings."""

    folder: str
    modules: Mapping[str, tuple[str, ...]]
    """Transport module → sonames that nothing on the host provides, so that it does not load."""
    verbs: str | None = None
    """Where its libibverbs looks for providers; None where the wheel brings none, or one that does not say."""
    providers: tuple[str, ...] = ()
    """Those it finds there, or brings."""


class Software(Struct, frozen=True):
    """What an engine's own Python would load."""

    python: str
    executable: str
    libc: str | None
    distributions: tuple[Distribution, ...]
    torch_cuda: str | None
    """CUDA release of torch, empty for a CPU build; None without torch."""
    missing: Mapping[str, tuple[str, ...]]
    """Library file → sonames that nothing on the host provides."""
    ucx: tuple[Ucx, ...] = ()

    def version(self, *names: str) -> str | None:
        """Version of the first of these packages that is installed."""
        return next((dist.version for name in names for dist in self.distributions if dist.name == name), None)


class HostFacts(Struct, frozen=True):
    """One host at one moment."""

    name: str
    host: Host
    choice: Choice
    locked_bytes: float | None
    """Limit of locked memory of a process started the same way; infinite where there is none."""
    shared_memory: int | None
    memory_limit: int | None
    """Of the container in bytes; None where none is set."""
    listening: frozenset[int] | None
    port_range: tuple[int, int] | None
    """Ports that the kernel hands out by itself."""
    own_addresses: tuple[str, ...]
    """What the host's own name resolves to."""
    clock_offset: tuple[float, float]
    """Seconds by which its clock is ahead of this one, as bounds."""
    nvidia_driver: str | None

    @property
    def accelerators(self) -> tuple[Gpu, ...]:
        """The devices that engines run on: those of the first of these vendors that the host has."""
        found = ([gpu for gpu in self.host.gpus if gpu.vendor == vendor] for vendor in ENGINES_RUN_ON)
        return tuple(next((gpus for gpus in found if gpus), ()))


def facts_of(
    name: str,
    host: Host,
    files: Mapping[str, str | None],
    *,
    shared_memory: int | None,
    own_addresses: tuple[str, ...],
    clock_offset: tuple[float, float],
) -> HostFacts:
    """The facts of a capture's files; `host` was read from the same capture."""
    return HostFacts(
        name=name,
        host=host,
        choice=choose(host),
        locked_bytes=_locked(files.get("/proc/self/limits"), files.get("/proc/self/status")),
        shared_memory=shared_memory,
        memory_limit=_memory_limit(files),
        listening=_listening(files.get("/proc/net/tcp"), files.get("/proc/net/tcp6")),
        port_range=_range(files.get("/proc/sys/net/ipv4/ip_local_port_range")),
        own_addresses=own_addresses,
        clock_offset=clock_offset,
        nvidia_driver=_driver(files.get("/proc/driver/nvidia/version")),
    )


def _locked(limits: str | None, status: str | None) -> float | None:
    for line in (status or "").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> IPC_LOCK & 1:
            return math.inf
    for line in (limits or "").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.removeprefix("Max locked memory").split()[0]
            return math.inf if soft == "unlimited" else float(soft)
    return None


def _memory_limit(files: Mapping[str, str | None]) -> int | None:
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = files.get(name) or ""
        if text.isdigit() and int(text) < NO_CGROUP_LIMIT:
            return int(text)
    return None


def _listening(*tables: str | None) -> frozenset[int] | None:
    """Ports with a TCP socket in state LISTEN (0A), of both families."""
    if all(table is None for table in tables):
        return None
    rows = (line.split() for table in tables for line in (table or "").splitlines()[1:])
    return frozenset(int(row[1].rsplit(":", 1)[1], 16) for row in rows if len(row) > 3 and row[3] == "0A")


def _range(text: str | None) -> tuple[int, int] | None:
    parts = (text or "").split()
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 else None


def _driver(text: str | None) -> str | None:
    """`… Kernel Module  570.124.06 …` → `570.124.06`, with `open` in front for the open modules."""
    words = (text or "").split()
    version = next((word for word in words if word.count(".") in (1, 2) and word.replace(".", "").isdigit()), None)
    return version and (f"open {version}" if "Open" in words else version)
