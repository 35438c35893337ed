"""What a machine is: frozen values, no IO. `None` means "could not be read", never "absent" or "zero"."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Scope = Literal["null", "link-local", "v4-mapped", "unique-local", "global"]


class Gid(Struct, frozen=True, gc=False):
    """One slot of a port's GID table that is not empty."""

    index: int
    address: str
    """IPv6 text, compressed; `10.0.8.252` for an IPv4-mapped one."""
    scope: Scope
    kind: str | None
    """`IB/RoCE v1`, `RoCE v2`; None where the kernel did not say."""
    netdev: str | None
    """The interface that it belongs to; None where there is none in this network namespace."""


class Port(Struct, frozen=True):
    """One port of an HCA."""

    number: int
    state: str | None
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    phys_state: str | None
    link_layer: str | None
    """`InfiniBand`, `Ethernet`; also what the kernel writes for others."""
    rate_gbps: float | None
    lid: int | None
    pkeys: tuple[int, ...]
    gids: tuple[Gid, ...]
    gid_slots: int
    """Length of the GID table, empty slots included."""
    gid_faults: int
    """Slots that could not be read: with a device in order there are none."""
    counters: Mapping[str, int]

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


class Hca(Struct, frozen=True):
    """One verbs device."""

    name: str
    node_type: str | None
    """`CA` for an adapter that speaks InfiniBand or RoCE, `RNIC` for iWARP."""
    driver: str | None
    model: str | None
    board: str | None
    firmware: str | None
    node_guid: str | None
    pci: str | None
    """PCI address; None for a virtual device."""
    pci_path: tuple[str, ...]
    """From the host bridge down to the device, both ends included."""
    numa: int | None
    physical_function: str | None
    """PCI address of the physical function, where this is a virtual one."""
    virtual_functions: int
    netdevs: tuple[str, ...]
    device_node: bool | None
    """Whether /dev/infiniband holds its uverbs node; None where that folder could not be read."""
    ports: tuple[Port, ...]

    @property
    def rate_gbps(self) -> float:
        return max((port.rate_gbps or 0.0 for port in self.ports), default=0.0)


class Netdev(Struct, frozen=True):
    """One network interface."""

    name: str
    up: bool | None
    mtu: int | None
    speed_mbps: int | None
    bond_slaves: tuple[str, ...]
    bond_mode: str | None
    networks: tuple[str, ...]
    """IPv4 networks that are reached through it directly, as `10.0.8.0/24`."""
    default_route: bool
    routes: tuple[str, ...] | None = None
    """IPv4 networks that a gateway on it leads to, of the main table; None where that could not be read."""


class Gpu(Struct, frozen=True):
    """One GPU or NPU, numbered in the order of its PCI address among those of one vendor."""

    index: int
    vendor: str
    model: str | None
    uuid: str | None
    pci: str
    pci_path: tuple[str, ...]
    numa: int | None
    device: str | None = None
    """PCI device, as `0x2330`."""


class Numa(Struct, frozen=True):
    """One NUMA node."""

    node: int
    cpus: str | None
    memory_bytes: int | None
    huge_pages: Mapping[str, int]
    """Free huge pages by size, as `{"2048kB": 0}`."""


class Host(Struct, frozen=True):
    """A machine, as one pass over its /sys and /proc saw it."""

    name: str
    kernel: str | None
    hcas: tuple[Hca, ...]
    netdevs: tuple[Netdev, ...]
    gpus: tuple[Gpu, ...]
    numa: tuple[Numa, ...]
    addresses: frozenset[str] | None
    """Addresses of this network namespace, IPv4 and IPv6; None where they could not be read."""
    modules: frozenset[str] | None
    """Loaded kernel modules; None where the list could not be read."""
    policy_routing: bool | None = None
    """Whether there are routing tables beside the main one, whose routes are not read; None where that is not known."""

    def netdev(self, name: str | None) -> Netdev | None:
        return next((dev for dev in self.netdevs if dev.name == name), None)

    def hca(self, name: str) -> Hca | None:
        return next((hca for hca in self.hcas if hca.name == name), None)
