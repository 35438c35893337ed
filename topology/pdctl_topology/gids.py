"""Reading GID tables, and choosing the entry that reaches another machine."""

import socket

from msgspec import Struct

from .model import Gid, Port, Scope
from .tree import Tree

_NULL = "0000:0000:0000:0000:0000:0000:0000:0000"
_V4_MAPPED = bytes(10) + b"\xff\xff"
_LINK_LOCAL_V4 = "169.254."


def read_gids(tree: Tree, port: str) -> tuple[tuple[Gid, ...], int, int]:
    """The entries in use of the table below `port`, its length, and how many slots could not be read.

    Attributes are read for the entries in use only: the kernel answers EINVAL for the others.
    """
    slots = tree.read_all(f"{port}/gids")
    found = {
        name: gid
        for name, text in slots.items()
        if text is not None and text != _NULL and name.isdigit() and (gid := classify(text)) is not None
    }
    kinds = tree.read_all(f"{port}/gid_attrs/types", found)
    netdevs = tree.read_all(f"{port}/gid_attrs/ndevs", found)
    gids = [Gid(int(name), *gid, kinds.get(name) or None, netdevs.get(name) or None) for name, gid in found.items()]
    gids.sort(key=lambda gid: gid.index)
    return tuple(gids), len(slots), sum(1 for text in slots.values() if text is None)


def classify(text: str) -> tuple[str, Scope] | None:
    """A GID's shortest text and its scope; None for what is no address.

    An InfiniBand GID with the default prefix is link-local too. (`ipaddress` does this twenty times slower, and a
    machine may have thousands.)
    """
    try:
        raw = socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        return None
    if raw.startswith(_V4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, raw[12:]), "v4-mapped"
    address = socket.inet_ntop(socket.AF_INET6, raw)
    if raw[0] == 0xFE and raw[1] & 0xC0 == 0x80:
        return address, "link-local"
    if raw[0] & 0xFE == 0xFC:
        return address, "unique-local"
    return address, "global" if any(raw) else "null"


class GidChoice(Struct, frozen=True):
    """The entry to use on a port, why it, and why not each of the others. `gid` None: there is none to use."""

    gid: Gid | None
    reason: str
    passed_over: tuple[tuple[Gid, str], ...]


def choose_gid(port: Port, addresses: frozenset[str] | None) -> GidChoice:
    """The GID that other machines can answer to.

    port: of Ethernet link layer; on InfiniBand the subnet manager routes by LID and entry 0 serves.
    addresses: those of this network namespace. A container sees the IPv4 GIDs of the whole machine; only the one that
    equals an address of its own interfaces is answered.
    """
    if port.link_layer == "InfiniBand":
        first = next(iter(port.gids), None)
        return GidChoice(first, "InfiniBand: routed by LID, no index to set" if first else "empty GID table", ())
    passed: list[tuple[Gid, str]] = []
    usable: list[tuple[int, Gid, str]] = []
    for gid in port.gids:
        fault = _fault(gid, addresses)
        if fault is not None:
            passed.append((gid, fault))
        else:
            rank, reason = _merit(gid, addresses)
            usable.append((rank, gid, reason))
    if not usable:
        return GidChoice(None, _why_none(port, passed), tuple(passed))
    usable.sort(key=lambda item: (item[0], item[1].index))
    _, best, reason = usable[0]
    passed += [(gid, f"index {best.index} is better") for _, gid, _ in usable[1:]]
    return GidChoice(best, reason, tuple(passed))


def _fault(gid: Gid, addresses: frozenset[str] | None) -> str | None:
    if gid.kind is not None and "v2" not in gid.kind:
        return f"{gid.kind} is not routed"
    if gid.scope == "link-local" or gid.address.startswith(_LINK_LOCAL_V4):
        return "link-local, not routed"
    if gid.scope == "v4-mapped" and addresses is not None and gid.address not in addresses:
        return "no interface here has this address (another network namespace)"
    return None


def _merit(gid: Gid, addresses: frozenset[str] | None) -> tuple[int, str]:
    kind = gid.kind or "type unknown"
    where = f" on {gid.netdev}" if gid.netdev else ""
    if gid.scope == "v4-mapped" and addresses is not None:
        return 0, f"{kind}, an IPv4 address of this host{where}"
    if gid.scope == "v4-mapped":
        return (1 if gid.netdev else 2), f"{kind}, IPv4{where}; addresses of this host unknown"
    return (3 if gid.netdev else 4), f"{kind}, {gid.scope} IPv6{where}"


def _why_none(port: Port, passed: list[tuple[Gid, str]]) -> str:
    if passed:
        return "; ".join(f"index {gid.index} {gid.address}: {reason}" for gid, reason in passed)
    if port.gid_faults:
        return f"{port.gid_faults} of {port.gid_slots} GID entries cannot be read"
    return "the GID table is empty: no address on its interface"
