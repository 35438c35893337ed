"""Pairs of hosts between which state is to move, for the rules about what two hosts have in common."""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.snapshot import Snapshot, label, machine
from pdctl.preflight.wants import Want
from pdctl.report.build import spans
from pdctl_transfer.rules.outcome import Evidence, Finding, Severity


class Side(Struct, frozen=True):
    """One host of a pair, and what a pool asks of it."""

    want: Want
    facts: HostFacts


def pairs(snapshot: Snapshot, protocol: str) -> Iterator[tuple[Side, Side]]:
    """Each prefill pool's hosts with each decode pool's, two different ones, that were read."""
    asked = [(want, snapshot.facts(want)) for want in snapshot.wants if want.protocol == protocol]
    sides = [Side(want, facts) for want, facts in asked if facts is not None]
    for one in (side for side in sides if side.want.role == "prefill"):
        for other in (side for side in sides if side.want.role == "decode"):
            if machine(one.want.host) != machine(other.want.host):
                yield one, other


class Apart(Struct, frozen=True):
    """What is wrong between two hosts: in words, with what each has. Equal ones of many pairs are one finding."""

    code: str
    prefill: str
    decode: str
    reason: str
    severity: Severity | None = None


def grouped(found: Mapping[Apart, list[tuple[Side, Side]]]) -> Iterator[Finding]:
    """One finding a cause, whichever pairs it keeps apart."""
    for apart, between in found.items():
        hosts = [list(dict.fromkeys(label(pair[side].want.host) for pair in between)) for side in (0, 1)]
        one, other = spans(hosts[0]), spans(hosts[1])
        evidence = (Evidence(one, apart.prefill), Evidence(other, apart.decode))
        params = {"prefill": one, "decode": other, "has": apart.prefill, "other": apart.decode, "reason": apart.reason}
        yield Finding(apart.code, f"{one} → {other}", evidence, params, apart.severity)
