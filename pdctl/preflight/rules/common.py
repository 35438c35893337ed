"""What several rules share: the pairs of want and facts, and which adapters a want would use."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

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


def named(want: Want, facts: HostFacts) -> list[Hca]:
    """The adapters that the want names and that exist, whatever port is written; none where it names none."""
    if not want.named:
        return []
    place = want.named[0]
    names = [bare(name.strip()) for name in place.names]
    same = fnmatchcase if place.reader == "ucx" else str.__eq__
    return [hca for hca in facts.host.hcas if any(same(hca.name, name) for name in names) != place.negated]


def known(name: str, facts: HostFacts) -> bool:
    """Whether some adapter of the host is meant by a name, with a port or without."""
    return any(fnmatchcase(hca.name, bare(name)) for hca in facts.host.hcas)


def bare(device: str) -> str:
    """`mlx5_0:1` → `mlx5_0`."""
    return device.partition(":")[0]


def used(want: Want, facts: HostFacts) -> list[Usable]:
    """The adapters that transfers of this want go over: the named ones, else those that pdctl would choose."""
    wanted = names_or(want, facts, facts.choice.hcas)
    return [item for item in facts.choice.usable if item.hca in wanted]


def names_or(want: Want, facts: HostFacts, otherwise: Sequence[str]) -> set[str]:
    """Names of the adapters that the want names; where it names none, others."""
    return {hca.name for hca in named(want, facts)} if want.devices else set(otherwise)
