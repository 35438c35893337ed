"""A preflight from a fleet file, or from nothing, to outcomes: for `pdctl preflight` and the first phase of `up`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pdctl.preflight.collect import collect
from pdctl.preflight.document import Facts, environment_of, hosts_in, snapshot_from
from pdctl.preflight.rules import judge
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import router_of, this_host, wants_of
from pdctl_transfer.rules.outcome import Outcome, Skipped

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet


def preflight_fleet(loaded: "LoadedFleet") -> tuple[Outcome, ...]:
    """Read and judge the hosts of a fleet. Raises nothing for a host that does not answer: that is a finding."""
    return judge(fleet_snapshot(loaded))


def fleet_snapshot(loaded: "LoadedFleet", facts: Sequence[Facts] = ()) -> Snapshot:
    """The hosts of a fleet, as they are now; with facts, as they were when those were captured."""
    if facts:
        return snapshot_from(facts, wants_of(loaded, environment_of(facts)), router_of(loaded))
    snapshot = collect(wants_of(loaded), router_of(loaded))
    return replace(snapshot, own_ports=_own_ports(loaded.fleet.name))


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


def here_snapshot(
    backend: str,
    protocol: str | None,
    devices: tuple[str, ...],
    environment: str | None,
    facts: Sequence[Facts] = (),
) -> Snapshot:
    """This machine, or each host of the facts. protocol None: rdma where one of them has a device, else tcp."""
    want = this_host(backend, protocol or "rdma", devices, environment)
    if facts:
        want = replace(want, env=dict(environment_of(facts)))
        wants = [replace(want, host=host, pool=label(host)) for host in hosts_in(facts)]
        snapshot = replace(snapshot_from(facts, wants, None), own_ports=frozenset())
    else:
        snapshot = collect([want], software=environment is not None)
    if protocol is None and not any(one.host.hcas for one in snapshot.read_hosts()):
        snapshot = replace(snapshot, wants=tuple(replace(one, protocol="tcp") for one in snapshot.wants))
    return snapshot if environment is not None else replace(snapshot, software={})


def judge_here(snapshot: Snapshot) -> tuple[Outcome, ...]:
    """Judge hosts of which no fleet file says what they are for."""
    outcomes = judge(snapshot)
    if snapshot.software:
        return outcomes
    return (*outcomes, Skipped("packages", "this host", "no --environment is given, so no engine's Python was asked"))
