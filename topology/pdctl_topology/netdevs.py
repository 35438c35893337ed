"""Network interfaces and addresses, from /sys/class/net and /proc/net: no `ip` command, any root."""

import socket

from .model import Netdev
from .tree import Tree

CLASS = "/sys/class/net"


def read_netdevs(tree: Tree) -> tuple[Netdev, ...]:
    """Every interface with its links, bond and directly reached IPv4 networks."""
    networks, default, routes = _routes(tree)
    return tuple(
        _netdev(tree, name, networks.get(name, ()), name in default, None if routes is None else routes.get(name, ()))
        for name in tree.names(CLASS) or ()
        if tree.read(f"{CLASS}/{name}/mtu") is not None
    )


def _netdev(tree: Tree, name: str, networks: tuple[str, ...], default: bool, routes: tuple[str, ...] | None) -> Netdev:
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
        routes=routes,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _routes(tree: Tree) -> tuple[dict[str, tuple[str, ...]], frozenset[str], dict[str, tuple[str, ...]] | None]:
    """Connected IPv4 networks by interface, the interfaces of default routes, and networks behind gateways."""
    networks: dict[str, tuple[str, ...]] = {}
    behind: dict[str, tuple[str, ...]] = {}
    default = set()
    table = tree.read("/proc/net/route")
    for line in (table or "").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        name, target, gateway, mask = fields[0], fields[1], fields[2], int(fields[7], 16)
        if mask == 0:
            default.add(name)
        else:
            network = socket.inet_ntop(socket.AF_INET, bytes.fromhex(target)[::-1])
            kind = networks if gateway == "00000000" else behind
            kind[name] = (*kind.get(name, ()), f"{network}/{mask.bit_count()}")
    return networks, frozenset(default), None if table is None else behind


def read_policy_routing(tree: Tree) -> bool | None:
    """Whether the routing trie has tables beside `Main` and `Local`: rules then choose among them."""
    trie = tree.read("/proc/net/fib_trie")
    return None if trie is None else any(line.startswith("Id ") for line in trie.splitlines())


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
