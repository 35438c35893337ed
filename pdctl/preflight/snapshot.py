"""Everything that the rules of `preflight` judge, frozen. A host that could not be read carries its fault instead."""

from collections.abc import Mapping

from msgspec import Struct

from pdctl.hosts.exec import LOCAL_NAMES
from pdctl.preflight.facts import HostFacts, Software
from pdctl.preflight.wants import RouterWant, Want


class Unread(Struct, frozen=True):
    """A host, or an interpreter on it, that could not be read, and why."""

    reason: str
    hint: str | None = None


class Snapshot(Struct, frozen=True):
    """The hosts of a fleet."""

    wants: tuple[Want, ...]
    hosts: Mapping[str, HostFacts | Unread]
    """By the name in the fleet file; empty for this machine."""
    software: Mapping[tuple[str, str], Software | Unread]
    """By host and interpreter."""
    router: RouterWant | None = None
    own_ports: frozenset[int] = frozenset()
    """Ports of this machine that the fleet itself holds, since it is up."""

    def facts(self, want: Want) -> HostFacts | None:
        """The host of a want; None if it could not be read."""
        found = self.hosts.get(want.host)
        return found if isinstance(found, HostFacts) else None

    def read_hosts(self) -> tuple[HostFacts, ...]:
        """Every host that could be read."""
        return tuple(facts for facts in self.hosts.values() if isinstance(facts, HostFacts))

    def programs(self, want: Want) -> Software | None:
        """What the engine of a want would load; None if its Python could not be asked."""
        found = self.software.get((want.host, want.python))
        return found if isinstance(found, Software) else None


def machine(host: str) -> str:
    """One name for a host however the file spells it: this one has several."""
    return "" if host in LOCAL_NAMES else host


def label(host: str) -> str:
    """How a report names a host."""
    return host or "this host"
