"""PD2207: /dev/shm holds more than a container runtime's default of 64 MiB: ranks of one engine talk through it."""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped

LEAST = 1 << 30


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host; a container's memory limit is said along with it."""
    for name, facts in snapshot.hosts.items():
        if not isinstance(facts, HostFacts):
            continue
        if facts.shared_memory is None:
            yield Skipped("container", label(name), "/dev/shm could not be read")
            continue
        size = f"{facts.shared_memory / (1 << 20):.0f} MiB"
        limit = "none" if facts.memory_limit is None else f"{facts.memory_limit / (1 << 30):.1f} GiB"
        if facts.shared_memory < LEAST:
            yield Finding("PD2207", label(name), (Evidence("/dev/shm", size),), {"size": size})
        else:
            yield Held("container", label(name), f"/dev/shm {size}, memory limit {limit}")
