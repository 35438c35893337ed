"""A preflight from a fleet file, or from nothing, to outcomes: for `pdctl preflight` and the first phase of `up`."""

from typing import TYPE_CHECKING

import msgspec

from pdctl.preflight.collect import collect
from pdctl.preflight.rules import judge
from pdctl.preflight.snapshot import Snapshot
from pdctl.preflight.wants import router_of, this_host, wants_of
from pdctl_transfer.rules.outcome import Outcome, Skipped

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet


def preflight_fleet(loaded: "LoadedFleet") -> tuple[Outcome, ...]:
    """Read and judge the hosts of a fleet. Raises nothing for a host that does not answer: that is a finding."""
    return judge(fleet_snapshot(loaded))


def fleet_snapshot(loaded: "LoadedFleet") -> Snapshot:
    """The hosts of a fleet, as they are now."""
    snapshot = collect(wants_of(loaded), router_of(loaded))
    return msgspec.structs.replace(snapshot, own_ports=_own_ports(loaded.fleet.name))


def _own_ports(fleet: str) -> frozenset[int]:
    """Ports of this machine that the fleet holds: taken, but by whom they should be."""
    from pdctl.launch.record import StateError
    from pdctl.launch.state import FleetFolder
    from pdctl.up.status import fleet_status

    try:
        state = FleetFolder(fleet).read()
        alive = {unit.name for unit in fleet_status(fleet).units if unit.pid is not None}
    except StateError:
        return frozenset()
    return frozenset(
        port for unit in (state.units if state else ()) if unit.name in alive for port in unit.ports.values()
    )


def preflight_here(
    backend: str, protocol: str | None, devices: tuple[str, ...], environment: str | None
) -> tuple[Outcome, ...]:
    """Read and judge this machine. protocol None: rdma where it has a device, else tcp."""
    software = environment is not None
    snapshot = collect([this_host(backend, protocol or "rdma", devices, environment)], software=software)
    if protocol is None and not any(facts.host.hcas for facts in snapshot.read_hosts()):
        want = this_host(backend, "tcp", devices, environment)
        snapshot = Snapshot((want,), snapshot.hosts, snapshot.software)
    outcomes = judge(snapshot)
    if software:
        return outcomes
    return (*outcomes, Skipped("packages", "this host", "no --environment is given, so no engine's Python was asked"))
