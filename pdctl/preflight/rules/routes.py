"""PD2023: RoCE devices of the two hosts of a pair are on one network, or a route leads from one's to the other's.

A RoCE connection leaves by the interface of its GID: a route of another interface is none. Without one the peer's
address has no neighbour to send to, and connections end with `transport retry counter exceeded` (Mooncake issue 2468).
"""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.pairs import Apart, Side, grouped, pairs
from pdctl.preflight.rules.common import used
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import Usable
from pdctl_transfer.rules.outcome import Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a pair of networks; skipped where addresses or tables are of a kind that was not read."""
    found: dict[Apart, list[tuple[Side, Side]]] = {}
    for one, other in pairs(snapshot, "rdma"):
        mine, theirs = ([item for item in used(s.want, s.facts) if item.link_layer == "Ethernet"] for s in (one, other))
        if not mine or not theirs:
            continue
        reached = [_both_ways(one.facts, a, other.facts, b) for a in mine for b in theirs]
        subject = f"{label(one.want.host)} → {label(other.want.host)}"
        if True in reached:
            yield Held("routes", subject, f"{reached.count(True)} of {len(reached)} pairs of devices have a route")
        elif None in reached:
            yield Skipped("routes", subject, "tables by rule, IPv6, or a routing table that was not read")
        else:
            has = (_addresses(one.facts, mine), _addresses(other.facts, theirs))
            found.setdefault(Apart("PD2023", *has, "no route between them"), []).append((one, other))
    yield from grouped(found)


def _both_ways(mine: HostFacts, a: Usable, theirs: HostFacts, b: Usable) -> bool | None:
    ways = (_leads(mine, a, b), _leads(theirs, b, a))
    return False if False in ways else None if None in ways else True


def _leads(facts: HostFacts, item: Usable, peer: Usable) -> bool | None:
    """Whether the interface of a device has a route to a peer's address; None where that is not known."""
    gid, target = item.gid.gid, peer.gid.gid
    if gid is None or target is None or "v4-mapped" not in (gid.scope, target.scope):
        return None
    if gid.scope != target.scope:
        return False
    dev, address = facts.host.netdev(gid.netdev), ip_address(target.address)
    if dev is None or dev.routes is None:
        return None
    if dev.default_route or any(address in ip_network(net, strict=False) for net in (*dev.networks, *dev.routes)):
        return True
    return None if facts.host.policy_routing is not False else False


def _addresses(facts: HostFacts, items: list[Usable]) -> str:
    """`mlx5_0 10.60.0.18 on 10.60.0.16/28`, for each device."""
    texts = []
    for item in items:
        gid = item.gid.gid
        dev = facts.host.netdev(gid.netdev) if gid else None
        networks = f" on {', '.join(dev.networks)}" if dev and dev.networks else ""
        texts.append(f"{item.hca} {gid.address if gid else '?'}{networks}")
    return ", ".join(texts)
