"""PD2306: over TCP, NIXL's UCX is kept to interfaces over which the peer is met, where a host has others.

UCX takes every interface that has an address, and asks the routing table whether a peer's is reached from it. An
address that both hosts have, such as that of docker0, is always reached: it is the host's own.
"""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.pairs import Apart, Side, grouped, pairs
from pdctl.preflight.snapshot import Snapshot
from pdctl_transfer.rules.outcome import Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding for all pairs with the same interfaces."""
    found: dict[Apart, list[tuple[Side, Side]]] = {}
    for one, other in pairs(snapshot, "tcp"):
        if one.want.backend != "nixl" or (one.want.named and other.want.named):
            continue
        shared = _shared(one.facts, other.facts)
        if shared:
            texts = [", ".join(f"{_interface(side.facts, a)} {a}" for a in shared) for side in (one, other)]
            found.setdefault(Apart("PD2306", texts[0], texts[1], "the same address on both hosts"), []).append(
                (one, other)
            )
    yield from grouped(found)


def _shared(mine: HostFacts, theirs: HostFacts) -> list[str]:
    """IPv4 addresses that both have; loopback apart."""
    both = (mine.host.addresses or frozenset()) & (theirs.host.addresses or frozenset())
    return sorted(text for text in both if ":" not in text and not ip_address(text).is_loopback)


def _interface(facts: HostFacts, address: str) -> str:
    for dev in facts.host.netdevs:
        if any(ip_address(address) in ip_network(net, strict=False) for net in dev.networks):
            return dev.name
    return "an interface with"
