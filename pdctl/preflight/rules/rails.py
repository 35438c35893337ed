"""PD2022: the devices of the two hosts of a pair have a partition, a subnet and a rail in common.

On a fabric whose rails are apart mlx5_0 of one host reaches mlx5_0 of the other and nothing else, so pools that name
other rails never meet: connections end with `transport retry counter exceeded`. Rails are told by name where both hosts
have all these names, and only on InfiniBand; on Ethernet the routes tell (PD2023).
"""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.pairs import Apart, Side, grouped, pairs
from pdctl.preflight.rules.common import used
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import Usable
from pdctl_transfer.rules.outcome import Held, Outcome

FULL, PARTITION = 0x8000, 0x7FFF
"""Bits of a partition key: full membership, and the partition's number."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a cause; held for pairs of InfiniBand hosts that have all in common."""
    found: dict[Apart, list[tuple[Side, Side]]] = {}
    for one, other in pairs(snapshot, "rdma"):
        mine, theirs = (
            [item for item in used(side.want, side.facts) if item.link_layer == "InfiniBand"] for side in (one, other)
        )
        if not mine or not theirs:
            continue
        reason = _apart(one, other, mine, theirs)
        if reason is not None:
            names = (_names(one.facts, mine), _names(other.facts, theirs))
            found.setdefault(Apart("PD2022", *names, reason), []).append((one, other))
        else:
            subject = f"{label(one.want.host)} → {label(other.want.host)}"
            yield Held("rails", subject, "their devices have a partition and a subnet in common")
    yield from grouped(found)


def _apart(one: Side, other: Side, mine: list[Usable], theirs: list[Usable]) -> str | None:
    """Why no device of one side reaches any of the other; None where one may."""
    both = [(a, b) for a in mine for b in theirs]
    if not any(_same_partition(_keys(one.facts, a), _keys(other.facts, b)) for a, b in both):
        return "no partition in common"
    if not any(_prefix(a) == _prefix(b) for a, b in both):
        return "no subnet in common"
    a, b = {item.hca for item in mine}, {item.hca for item in theirs}
    alike = all({hca.name for hca in side.facts.host.hcas} >= a | b for side in (one, other))
    return "no rail in common, if equal names are one rail" if alike and a.isdisjoint(b) else None


def _keys(facts: HostFacts, item: Usable) -> tuple[int, ...]:
    hca = facts.host.hca(item.hca)
    return next((port.pkeys for port in hca.ports if port.number == item.port), ()) if hca else ()


def _same_partition(mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
    """One of the two has to be a full member. Keys that could not be read keep nobody apart."""
    if not mine or not theirs:
        return True
    return any(a & PARTITION == b & PARTITION and (a | b) & FULL for a in mine for b in theirs)


def _prefix(item: Usable) -> str:
    """The subnet prefix of the port's GID: its first 64 bits."""
    from ipaddress import IPv6Address

    return IPv6Address(item.gid.gid.address).exploded[:19] if item.gid.gid is not None else ""


def _names(facts: HostFacts, items: list[Usable]) -> str:
    """`mlx5_0, mlx5_1 (subnet fe80:…, partition 0x7fff)`, with what all have in common told once."""
    keys = sorted({key & PARTITION for item in items for key in _keys(facts, item)})
    partitions = ", ".join(f"{key:#06x}" for key in keys) or "unknown"
    subnets = ", ".join(sorted({_prefix(item) for item in items}))
    return f"{', '.join(item.hca for item in items)} (partition {partitions}, subnet {subnets})"
