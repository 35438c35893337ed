"""PD2202, PD2206: a port that the fleet file names is free, and not one that the kernel may hand to others."""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import readable
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a port: those of each pool on its hosts, and the router's on this one."""
    for want, facts in readable(snapshot):
        for purpose, port in want.ports:
            yield _judge(snapshot, facts, purpose, port, want.ports_source)
    here, router = snapshot.hosts.get(""), snapshot.router
    if router is not None and router.port is not None and isinstance(here, HostFacts):
        yield _judge(snapshot, here, "router", router.port, router.source)


def _judge(snapshot: Snapshot, facts: HostFacts, purpose: str, port: int, source: str) -> Outcome:
    subject = label(facts.name)
    written = Evidence(source, f"{purpose}: {port}")
    params = {"purpose": purpose, "port": port}
    if facts.listening is None:
        return Skipped("ports", subject, "the list of listening ports could not be read")
    if port in snapshot.own_ports and not facts.name:
        return Held("ports", subject, f"{purpose} {port} is this fleet's own, which is up")
    if port in facts.listening:
        taken = Evidence("/proc/net/tcp", f"a socket listens on {port}")
        return Finding("PD2202", subject, (written, taken), params)
    if facts.port_range is not None and facts.port_range[0] <= port <= facts.port_range[1]:
        low, high = facts.port_range
        own = Evidence("ip_local_port_range", f"{low} to {high}")
        return Finding("PD2206", subject, (written, own), {**params, "low": low, "high": high})
    return Held("ports", subject, f"{purpose} {port} is free")
