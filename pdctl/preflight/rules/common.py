"""What several rules share: the pairs of want and facts, and which adapters a want would use."""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.snapshot import Snapshot
from pdctl.preflight.wants import Want
from pdctl_topology import Hca, Usable


def readable(snapshot: Snapshot) -> Iterator[tuple[Want, HostFacts]]:
    """Wants whose host could be read. The others are one finding of their own (PD2201)."""
    for want in snapshot.wants:
        facts = snapshot.facts(want)
        if facts is not None:
            yield want, facts


def over_rdma(snapshot: Snapshot) -> Iterator[tuple[Want, HostFacts]]:
    """Readable wants that ask for RDMA."""
    return (pair for pair in readable(snapshot) if pair[0].protocol == "rdma")


def named(want: Want, facts: HostFacts) -> Iterator[Hca]:
    """The adapters that the want names and that exist."""
    for name in want.devices:
        hca = facts.host.hca(bare(name))
        if hca is not None:
            yield hca


def bare(device: str) -> str:
    """`mlx5_0:1` → `mlx5_0`."""
    return device.partition(":")[0]


def used(want: Want, facts: HostFacts) -> list[Usable]:
    """The adapters that transfers of this want go over: the named ones, else those that pdctl would choose."""
    wanted = {bare(name) for name in want.devices} or set(facts.choice.hcas)
    return [item for item in facts.choice.usable if item.hca in wanted]
