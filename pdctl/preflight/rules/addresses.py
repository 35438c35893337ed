"""PD2203, PD2204: the address that a side tells its peers is one at which they can reach it.

PD2203: an address that the fleet file gives. PD2204: none is given and the host's own name resolves to loopback, which
is what engines then tell: requests hang, and every health check is green.
"""

from collections.abc import Iterator
from ipaddress import ip_address

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import readable
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome an address that is given; one a host of a fleet with several where none is."""
    several = len({want.host for want in snapshot.wants}) > 1
    for want, facts in readable(snapshot):
        subject = label(want.host)
        for given in want.addresses:
            fault = _fault(given.text, facts.host.addresses, several)
            if fault is not None:
                yield Finding("PD2203", subject, (given,), {"address": given.text, "reason": fault})
            else:
                yield Held("addresses", subject, f"{given.text} is an address of this host")
        if several and not want.addresses:
            yield _own_name(subject, facts)


def _own_name(subject: str, facts: HostFacts) -> Outcome:
    text = ", ".join(facts.own_addresses)
    if not text:
        return Skipped("addresses", subject, "its own name does not resolve, so what engines will tell is unknown")
    if all(ip_address(item.partition("%")[0]).is_loopback for item in facts.own_addresses):
        return Finding("PD2204", subject, (Evidence(facts.host.name, text),), {"addresses": text})
    return Held("addresses", subject, f"its name resolves to {text}")


def _fault(address: str, own: frozenset[str] | None, several: bool) -> str | None:
    try:
        parsed = ip_address(address.strip("[]"))
    except ValueError:
        return "loopback, while peers are on other hosts" if several and address == "localhost" else None
    if several and parsed.is_loopback:
        return "loopback, while peers are on other hosts"
    return "no interface of this host has it" if own is not None and str(parsed) not in own else None
