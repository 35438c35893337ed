"""PD2003: the port of a named device is up. To Mooncake a device whose port is down is none, and TCP is used."""

from collections.abc import Iterator

from pdctl.preflight.rules.common import named, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a named device."""
    for want, facts in over_rdma(snapshot):
        for hca in named(want, facts):
            if any(port.active for port in hca.ports):
                yield Held("device-port", label(want.host), f"{hca.name} is active")
                continue
            states = "; ".join(f"port {port.number}: {port.state}, {port.phys_state}" for port in hca.ports)
            evidence = (
                Evidence(want.devices_source, hca.name),
                Evidence(f"/sys/class/infiniband/{hca.name}", states or "no port"),
            )
            yield Finding("PD2003", label(want.host), evidence, {"device": hca.name, "state": states or "no port"})
