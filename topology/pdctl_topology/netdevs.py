"""Network interfaces and addresses, from /sys/class/net and /proc/net: no `ip` command, any root."""

import socket

from .model import Netdev
from .tree import Tree

CLASS = "/sys/class/net"


def read_netdevs(tree: Tree) -> tuple[Netdev, ...]:
    """Every interface with its links, bond and directly reached IPv4 networks."""
    networks, default = _routes(tree)
    return tuple(
        _netdev(tree, name, networks.get(name, ()), name in default)
        for name in tree.names(CLASS) or ()
        if tree.read(f"{CLASS}/{name}/mtu") is not None
    )


def _netdev(tree: Tree, name: str, networks: tuple[str, ...], default: bool) -> Netdev:
    here = f"{CLASS}/{name}"
    state = tree.read(f"{here}/operstate")
    slaves = tree.read(f"{here}/bonding/slaves")
    mode = tree.read(f"{here}/bonding/mode")
    return Netdev(
        name=name,
        # virtual interfaces answer "unknown" while they carry packets
        up=None if state is None else state in ("up", "unknown"),
        mtu=_number(tree.read(f"{here}/mtu")),
        speed_mbps=_number(tree.read(f"{here}/speed")),
        bond_slaves=tuple(slaves.split()) if slaves else (),
        bond_mode=mode.split()[0] if mode else None,
        networks=networks,
        default_route=default,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _routes(tree: Tree) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Connected IPv4 networks by interface, and the interfaces of default routes."""
    networks: dict[str, tuple[str, ...]] = {}
    default = set()
    for line in (tree.read("/proc/net/route") or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        name, target, gateway, mask = fields[0], fields[1], fields[2], int(fields[7], 16)
        if mask == 0:
            default.add(name)
        elif gateway == "00000000":
            network = socket.inet_ntop(socket.AF_INET, bytes.fromhex(target)[::-1])
            networks[name] = (*networks.get(name, ()), f"{network}/{mask.bit_count()}")
    return networks, frozenset(default)


def read_addresses(tree: Tree) -> frozenset[str] | None:
    """Addresses of this network namespace: the `host LOCAL` leaves of the routing trie, and the IPv6 table."""
    trie, table = tree.read("/proc/net/fib_trie"), tree.read("/proc/net/if_inet6")
    if trie is None and table is None:
        return None
    found = set()
    leaf = ""
    for line in (trie or "").splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[1]
        elif words == ["/32", "host", "LOCAL"]:
            found.add(leaf)
    for line in (table or "").splitlines():
        found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(line.split()[0])))
    return frozenset(found)
