"""PD2201: every host answers, and every engine's Python can be asked what it would load."""

from collections.abc import Iterator

from pdctl.preflight.snapshot import Snapshot, Unread, label
from pdctl_transfer.rules.outcome import Finding, Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host; an interpreter that does not answer leaves its rules unjudged."""
    for name, facts in snapshot.hosts.items():
        if isinstance(facts, Unread):
            params = {"reason": facts.reason, "hint": facts.hint or "make the host answer"}
            yield Finding("PD2201", label(name), params=params)
        else:
            devices = ", ".join(hca.name for hca in facts.host.hcas) or "none"
            yield Held("reach", label(name), f"read: {len(facts.host.gpus)} GPUs, RDMA devices: {devices}")
    for (name, python), found in snapshot.software.items():
        if isinstance(found, Unread) and not isinstance(snapshot.hosts.get(name), Unread):
            yield Skipped("software", label(name), f"{python} did not answer: {found.reason}")
