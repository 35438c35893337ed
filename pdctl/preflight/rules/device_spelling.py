"""PD2021: a device is named in the words of what reads it: an HCA, an interface, an HCA with its port.

Mooncake and SGLang compare whole names of HCAs. UCX matches patterns against `HCA:PORT` and against interfaces, so a
bare name matches nothing, and a list of interfaces alone leaves it on TCP. Mooncake keeps a blank after a comma.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from pdctl.engines.named import READERS, Named
from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import bare, known, readable
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

PATTERN = frozenset("*?[")


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a name that its reader takes for nothing."""
    for want, facts in readable(snapshot):
        place = want.named[0] if want.named else None
        if place is None or not place.names or not _comparable(want, facts):
            continue
        faults = list(_over_tcp(place, facts) if want.protocol == "tcp" else _over_rdma(place, facts))
        for name, reason in faults:
            written = (Evidence(place.source, place.text),)
            yield Finding("PD2021", label(want.host), written, {"device": name, "place": place.what, "reason": reason})
        if not faults and (
            want.protocol == "tcp" or all(known(name, facts) or facts.host.netdev(name) for name in place.names)
        ):
            yield Held("device-spelling", label(want.host), f"{place.what} is spelled as its reader compares it")


def _comparable(want: Want, facts: HostFacts) -> bool:
    """Whether there is something to compare names with; over TCP nothing but UCX reads any."""
    if want.protocol == "tcp":
        return want.named[0].reader == "ucx" and bool(facts.host.netdevs)
    return bool(facts.host.hcas)


def _over_rdma(place: Named, facts: HostFacts) -> Iterator[tuple[str, str]]:
    if place.reader == "ucx":
        yield from _of_ucx(place, facts)
        return
    reader = READERS[place.reader]
    for name in place.names:
        if (netdev := facts.host.netdev(name)) is not None:
            owners = [hca.name for hca in facts.host.hcas if name in hca.netdevs or name in _netdevs(hca.name, facts)]
            owner = f"; its adapter is {' and '.join(owners)}" if owners else "; it has no adapter"
            yield name, f"an interface, and {reader} compares names of adapters{owner if netdev else ''}"
        elif PATTERN & set(name):
            yield name, f"a pattern, and {reader} compares whole names"
        elif name != name.strip():
            yield repr(name), f"with a blank, and {reader} splits at commas and nothing else"


def _netdevs(hca: str, facts: HostFacts) -> set[str]:
    found = facts.host.hca(hca)
    return {gid.netdev for port in found.ports for gid in port.gids if gid.netdev} if found else set()


def _of_ucx(place: Named, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """Names that match no `HCA:PORT`, and interfaces without any HCA beside them."""
    ports = [f"{hca.name}:{port.number}" for hca in facts.host.hcas for port in hca.ports]
    for name in place.names:
        if any(fnmatchcase(port, name) for port in ports) or facts.host.netdev(name) is not None:
            continue
        if ":" not in name and known(name, facts):
            yield name, f"without a port, and UCX compares {name}:1"
        elif ":" in name and known(name, facts):
            yield name, f"{bare(name)} has no such port"
    interfaces = [name for name in place.names if facts.host.netdev(name) is not None]
    if not place.negated and interfaces and len(interfaces) == len(place.names):
        yield ", ".join(interfaces), "interfaces alone, so UCX is left with TCP"


def _over_tcp(place: Named, facts: HostFacts) -> Iterator[tuple[str, str]]:
    """UCX over TCP goes by interfaces."""
    present = [dev.name for dev in facts.host.netdevs]
    for name in place.names:
        matched = [dev for dev in facts.host.netdevs if fnmatchcase(dev.name, name)]
        if matched and any(dev.up is not False for dev in matched):
            continue
        if matched:
            yield name, "the interface is down"
        elif known(name, facts):
            yield name, "an adapter, and over TCP UCX goes by interfaces"
        elif present and not place.negated:
            yield name, f"no interface of this host; there are {', '.join(present)}"
