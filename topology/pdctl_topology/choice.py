"""Which HCAs each GPU should use, with the reason for every pick and every exclusion. Pure.

First each port is judged by itself and against the others of its host (`judge`), then every GPU takes the nearest of
what is left (`choose`). Without GPUs each NUMA node takes the place of one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from .gids import GidChoice, choose_gid
from .model import Gpu, Hca, Host, Port
from .pci import Distance, distance

Cause = Literal[
    "not-an-adapter", "down", "no-device-node", "limited-partition", "gid-unreadable", "no-routable-gid",
    "virtual-function", "other-link-layer", "management", "slow",
]  # fmt: skip

FULL_MEMBER = 0x8000
"""Bit of a partition key that says full membership."""


class Usable(Struct, frozen=True):
    """An HCA that transfers may use, by its port and GID."""

    hca: str
    port: int
    rate_gbps: float
    link_layer: str | None
    gid: GidChoice


class Excluded(Struct, frozen=True):
    """An HCA that transfers should not use."""

    hca: str
    port: int | None
    cause: Cause
    reason: str


class Pick(Struct, frozen=True):
    """An HCA for one consumer."""

    hca: str
    distance: str
    reason: str


class Assignment(Struct, frozen=True):
    """HCAs of one GPU, or of one NUMA node. `warning` is set where the best there is is far away."""

    consumer: str
    gpu: int | None
    numa: int | None
    picks: tuple[Pick, ...]
    far: Mapping[str, str]
    """HCAs passed over for this consumer, and why."""
    warning: str | None = None


class Choice(Struct, frozen=True):
    """The HCAs of one host."""

    usable: tuple[Usable, ...]
    excluded: tuple[Excluded, ...]
    assignments: tuple[Assignment, ...]
    idle: tuple[str, ...]
    """Usable, but nearest to no GPU."""

    @property
    def hcas(self) -> tuple[str, ...]:
        """Every HCA that some consumer uses, in the order of the host."""
        used = {pick.hca for assignment in self.assignments for pick in assignment.picks}
        return tuple(item.hca for item in self.usable if item.hca in used)


Fault = Callable[[Usable], Excluded | None]


def choose(host: Host, link_layer: str | None = None) -> Choice:
    """The HCAs to use on `host`. link_layer: take this one; by default the one that carries the most bandwidth."""
    usable, excluded = judge(host, link_layer)
    hcas = [hca for name in (item.hca for item in usable) if (hca := host.hca(name)) is not None]
    assignments = tuple(_for_gpu(gpu, hcas) for gpu in host.gpus) or _for_nodes(hcas, host)
    used = {pick.hca for assignment in assignments for pick in assignment.picks}
    return Choice(tuple(usable), tuple(excluded), assignments, tuple(hca.name for hca in hcas if hca.name not in used))


def judge(host: Host, link_layer: str | None = None) -> tuple[list[Usable], list[Excluded]]:
    """Each HCA once: usable by its best port, or excluded by the fault of its first."""
    usable: list[Usable] = []
    excluded: list[Excluded] = []
    for hca in host.hcas:
        faults: list[Excluded] = []
        for port in hca.ports:
            gid = choose_gid(port, host.addresses)
            fault = _own_fault(hca, port, gid, host)
            if fault is None:
                usable.append(Usable(hca.name, port.number, port.rate_gbps or 0.0, port.link_layer, gid))
                break
            faults.append(fault)
        else:
            excluded += faults[:1] or [Excluded(hca.name, None, "not-an-adapter", "has no port")]
    for fault_of in (_virtual, lambda items, _: _other_layer(items, link_layer), _slow):
        judge_one = fault_of(usable, host)
        verdicts = [(item, judge_one(item)) for item in usable]
        usable = [item for item, why in verdicts if why is None]
        excluded += [why for _, why in verdicts if why is not None]
    return usable, excluded


def _own_fault(hca: Hca, port: Port, gid: GidChoice, host: Host) -> Excluded | None:
    """What rules a port out whatever else the host has."""

    def out(cause: Cause, reason: str) -> Excluded:
        return Excluded(hca.name, port.number, cause, reason)

    if hca.node_type not in ("CA", None):
        return out("not-an-adapter", f"node type {hca.node_type}, not an adapter for InfiniBand or RoCE")
    if not port.active:
        physical = f", physically {port.phys_state}" if port.phys_state else ""
        return out("down", f"port {port.number} is {port.state or 'of unknown state'}{physical}")
    if port.link_layer not in ("InfiniBand", "Ethernet"):
        return out("not-an-adapter", f"link layer {port.link_layer or 'unknown'}")
    if hca.device_node is False:
        return out("no-device-node", "its uverbs node is not in /dev/infiniband: not passed to this container")
    if port.link_layer == "InfiniBand" and port.pkeys and not any(key & FULL_MEMBER for key in port.pkeys):
        return out("limited-partition", f"only a limited member of its partition (P_Key {port.pkeys[0]:#06x})")
    if not port.gids and port.gid_faults:
        return out("gid-unreadable", gid.reason)
    if gid.gid is None:
        return out("no-routable-gid", gid.reason)
    return None


def _virtual(usable: Sequence[Usable], host: Host) -> Fault:
    """A virtual function shares the port of its physical one: with both in sight only the physical one counts."""
    owners = {hca.pci: hca.name for hca in host.hcas if hca.pci and any(item.hca == hca.name for item in usable)}
    shadows = {hca.name: owners.get(hca.physical_function or "") for hca in host.hcas}

    def fault(item: Usable) -> Excluded | None:
        owner = shadows[item.hca]
        return Excluded(item.hca, item.port, "virtual-function", f"virtual function of {owner}") if owner else None

    return fault


def _other_layer(usable: Sequence[Usable], wanted: str | None) -> Fault:
    """A transfer group is of one link layer: InfiniBand and Ethernet ports cannot reach each other."""
    sums: dict[str, float] = {}
    for item in usable:
        sums[item.link_layer or ""] = sums.get(item.link_layer or "", 0.0) + item.rate_gbps
    layer = wanted or max(sums, key=lambda name: sums[name], default="")
    why = "is asked for" if wanted else "carries most of this host's bandwidth"

    def fault(item: Usable) -> Excluded | None:
        if item.link_layer == layer:
            return None
        return Excluded(item.hca, item.port, "other-link-layer", f"{item.link_layer}, while {layer} {why}")

    return fault


def _slow(usable: Sequence[Usable], host: Host) -> Fault:
    """Ports of half the best rate or less serve management or storage."""
    best = max((item.rate_gbps for item in usable), default=0.0)
    default_routes = {dev.name for dev in host.netdevs if dev.default_route}

    def fault(item: Usable) -> Excluded | None:
        if item.rate_gbps * 2 > best or best == 0.0:
            return None
        text = f"{item.rate_gbps:g} Gb/s, while others have {best:g}"
        netdev = _netdev(item, host)
        if netdev in default_routes:
            return Excluded(item.hca, item.port, "management", f"{text}; {netdev} carries the default route")
        return Excluded(item.hca, item.port, "slow", text)

    return fault


def _netdev(item: Usable, host: Host) -> str | None:
    if item.gid.gid is not None and item.gid.gid.netdev:
        return item.gid.gid.netdev
    hca = host.hca(item.hca)
    return hca.netdevs[0] if hca and hca.netdevs else None


def _for_gpu(gpu: Gpu, hcas: Sequence[Hca]) -> Assignment:
    ranked = [(distance(gpu.pci_path, gpu.numa, hca.pci_path, hca.numa), hca) for hca in hcas]
    return _nearest(f"GPU {gpu.index}", gpu.index, gpu.numa, ranked)


def _for_nodes(hcas: Sequence[Hca], host: Host) -> tuple[Assignment, ...]:
    """One consumer a NUMA node; a single one where the machine has one node or the devices name none."""
    nodes = [numa.node for numa in host.numa]
    if len(nodes) < 2 or all(hca.numa is None for hca in hcas):
        picks = tuple(Pick(hca.name, "-", f"no GPU to be near to, {hca.rate_gbps:g} Gb/s") for hca in hcas)
        return (Assignment("host", None, None, picks, {}, None if picks else "no usable HCA"),)
    return tuple(
        _nearest(f"NUMA {node}", None, node, [(distance((), node, (), hca.numa), hca) for hca in hcas])
        for node in nodes
    )


def _nearest(consumer: str, gpu: int | None, numa: int | None, ranked: list[tuple[Distance, Hca]]) -> Assignment:
    best = min((where for where, _ in ranked), default=None)
    if best is None:
        return Assignment(consumer, gpu, numa, (), {}, "no usable HCA")
    picks = tuple(Pick(hca.name, where.name, _why(where, hca)) for where, hca in ranked if where == best)
    far = {hca.name: f"{where.name}, while {picks[0].hca} is {best.name}" for where, hca in ranked if where != best}
    warning = f"the nearest HCA is behind another NUMA node ({best.name})" if best == Distance.SYS else None
    return Assignment(consumer, gpu, numa, picks, far, warning)


_WORDS = {
    Distance.PIX: "same PCIe switch",
    Distance.PXB: "same host bridge port, several switches apart",
    Distance.PHB: "same host bridge",
    Distance.NODE: "same NUMA node",
    Distance.SYS: "another NUMA node, none nearer",
    Distance.UNKNOWN: "distance unknown",
}


def _why(where: Distance, hca: Hca) -> str:
    return f"{where.name}: {_WORDS[where]}, {hca.rate_gbps:g} Gb/s"
