"""PD2205: clocks agree to within seconds, so that logs of two hosts can be read together and leases mean the same."""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

TOLERATED = 2.0
"""Seconds."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host other than this one. The offset is known as bounds; only what is certain is a finding."""
    for name, facts in snapshot.hosts.items():
        if not name or not isinstance(facts, HostFacts):
            continue
        low, high = facts.clock_offset
        if low > TOLERATED or high < -TOLERATED:
            least = low if low > 0 else high
            evidence = (Evidence("clock", f"{low:+.1f} to {high:+.1f} s against this host"),)
            yield Finding("PD2205", label(name), evidence, {"offset": f"{least:+.1f}"})
        else:
            yield Held("clock", label(name), f"within {max(abs(low), abs(high)):.1f} s of this host")
