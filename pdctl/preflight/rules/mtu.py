"""PD2007: RoCE ports that talk to each other have one MTU.

Ports take the largest InfiniBand MTU that fits into their interface's. Mooncake does not negotiate: with 4096 on one
side and 1024 on the other writes fail after seconds with `Process failed for slice`, and nothing names the MTU.
"""

from collections import Counter
from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import over_rdma, used
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import Usable
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped

SIZES = (4096, 2048, 1024, 512, 256)
HEADERS = 96
"""Bytes of GRH, UDP, BTH, extended headers and ICRC that Linux leaves room for (`iboe_get_mtu`)."""


def roce_mtu(interface: int) -> int:
    """The InfiniBand MTU that a RoCE port takes on an interface of this MTU."""
    return next((size for size in SIZES if size <= interface - HEADERS), SIZES[-1])


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a device that differs from most; devices of all hosts that use RDMA are compared."""
    sizes: dict[tuple[str, str], tuple[int, int]] = {}
    for want, facts in over_rdma(snapshot):
        for item in used(want, facts):
            if item.link_layer != "Ethernet":
                continue
            interface = _interface_mtu(item, facts)
            if interface is None:
                yield Skipped("mtu", label(want.host), f"{item.hca}: the MTU of its interface could not be read")
            else:
                sizes[label(want.host), item.hca] = (roce_mtu(interface), interface)
    if not sizes:
        return
    common = Counter(size for size, _ in sizes.values()).most_common(1)[0][0]
    odd = {where: size for where, size in sizes.items() if size[0] != common}
    for (host, device), (size, interface) in odd.items():
        rest = next(f"{name} on {where}" for (where, name), (other, _) in sizes.items() if other == common)
        evidence = (Evidence(device, f"interface MTU {interface}, so {size}"), Evidence(rest, str(common)))
        yield Finding("PD2007", host, evidence, {"device": device, "mtu": size, "other": rest, "common": common})
    if not odd:
        yield Held("mtu", "all hosts", f"RoCE MTU {common} on {len(sizes)} devices")


def _interface_mtu(item: Usable, facts: HostFacts) -> int | None:
    hca = facts.host.hca(item.hca)
    names = [item.gid.gid.netdev if item.gid.gid else None, *(hca.netdevs if hca else ())]
    found = (facts.host.netdev(name) for name in names)
    return next((dev.mtu for dev in found if dev is not None and dev.mtu), None)
