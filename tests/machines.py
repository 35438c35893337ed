"""Machines as small TOML files (tests/data/topology), written out as the /sys, /proc and /dev that their kernels show.

What a file leaves out is taken from the defaults below. `[[repeat]]` tables make rows of a kind: `{i}` is the number,
`{h}` and `{x}` the same in hexadecimal.
"""

import os
import tomllib
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from pdctl_topology import FolderTree, Host, read_host

DATA = Path(__file__).parent / "data" / "topology"
EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
HCA = {
    "node_type": "1: CA",
    "hca_type": "MT4129",
    "board_id": "MT_0000000838",
    "fw_ver": "28.39.1002",
    "state": "4: ACTIVE",
    "phys_state": "5: LinkUp",
    "rate": "400 Gb/sec (4X NDR)",
    "link_layer": "InfiniBand",
    "lid": "0x0",
    "pkey": "0xffff",
    "numa": -1,
    "gids": [],
    "slots": 8,
    "device_node": True,
    "counters": {},
    "hw_counters": {},
}


def build(name: str, root: Path) -> Path:
    """Write the machine of `tests/data/topology/NAME.toml` below `root`."""
    return write(tomllib.loads((DATA / f"{name}.toml").read_text()), root)


def host(name: str, root: Path) -> Host:
    return read_host(FolderTree(build(name, root)))


def write(machine: dict[str, Any], root: Path) -> Path:
    for number, hca in enumerate(_rows(machine, "hca")):
        _hca(root, number, {**HCA, **hca})
    for gpu in _rows(machine, "gpu"):
        device = _pci(root, gpu["at"], {"class": gpu.get("class", "0x030200"), "vendor": gpu.get("vendor", "0x10de")})
        _put(device / "numa_node", str(gpu.get("numa", -1)))
        if "device" in gpu:
            _put(device / "device", gpu["device"])
    for netdev in _rows(machine, "netdev"):
        _netdev(root, netdev)
    for node, cpus in enumerate(machine.get("numa", [])):
        _put(root / f"sys/devices/system/node/node{node}/cpulist", cpus)
        _put(root / f"sys/devices/system/node/node{node}/meminfo", f"Node {node} MemTotal:  1056784888 kB")
    for path, text in machine.get("files", {}).items():
        _put(root / path.lstrip("/"), text)
    _addresses(root, machine)
    return root


def _rows(machine: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = list(machine.get(kind, []))
    for repeat in machine.get("repeat", []):
        if repeat["kind"] == kind:
            row = {key: value for key, value in repeat.items() if key not in ("kind", "numbers")}
            rows += [_number(row, number) for number in repeat["numbers"]]
    return rows


def _number(value: Any, number: int) -> Any:
    if isinstance(value, str):
        return value.replace("{i}", str(number)).replace("{x}", f"{number:02x}").replace("{h}", f"{number:x}")
    if isinstance(value, list):
        return [_number(item, number) for item in value]
    if isinstance(value, dict):
        return {key: _number(item, number) for key, item in value.items()}
    return value


def _hca(root: Path, number: int, hca: dict[str, Any]) -> None:
    if "at" in hca:
        device = _pci(root, hca["at"], {"class": "0x020700", "vendor": "0x15b3", "numa_node": str(hca["numa"])})
        here = device / "infiniband" / hca["name"]
        for name in hca.get("netdevs", []):
            (device / "net" / name).mkdir(parents=True)
        if "physfn" in hca:
            (device / "physfn").symlink_to(f"../{hca['physfn']}")
        _link(here / "device", "../..")
    else:
        here = root / "sys/devices/virtual/infiniband" / hca["name"]
    for name in ("node_type", "hca_type", "board_id", "fw_ver"):
        _put(here / name, hca[name])
    port = here / "ports/1"
    for name in ("state", "phys_state", "rate", "link_layer", "lid"):
        _put(port / name, hca[name])
    _put(port / "pkeys/0", hca["pkey"])
    for slot in range(hca["slots"]):
        _put(port / f"gids/{slot}", EMPTY_GID)
    for index, address, kind, netdev in hca["gids"]:
        _put(port / f"gids/{index}", address)
        _put(port / f"gid_attrs/types/{index}", kind)
        if netdev:
            _put(port / f"gid_attrs/ndevs/{index}", netdev)
    for index in hca.get("unreadable", []):
        # what the kernel answers with an error: here a folder, which no one can read as a file either
        (port / f"gids/{index}").unlink()
        (port / f"gids/{index}").mkdir()
    for folder in ("counters", "hw_counters"):
        for name, value in hca[folder].items():
            _put(port / folder / name, str(value))
    _link(root / "sys/class/infiniband" / hca["name"], here)
    _put(root / f"sys/class/infiniband_verbs/uverbs{number}/ibdev", hca["name"])
    (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
    if hca["device_node"]:
        _put(root / f"dev/infiniband/uverbs{number}", "")


def _pci(root: Path, at: str, files: dict[str, str]) -> Path:
    device = root / "sys/devices" / at
    for name, text in files.items():
        _put(device / name, text)
    _link(root / "sys/bus/pci/devices" / device.name, device)
    return device


def _netdev(root: Path, netdev: dict[str, Any]) -> None:
    here = root / "sys/class/net" / netdev["name"]
    _put(here / "mtu", str(netdev.get("mtu", 4200)))
    _put(here / "operstate", netdev.get("state", "up"))
    if "slaves" in netdev:
        _put(here / "bonding/slaves", netdev["slaves"])
        _put(here / "bonding/mode", "802.3ad 4")


def _addresses(root: Path, machine: dict[str, Any]) -> None:
    """The routing trie and table, as far as they are read."""
    if "addresses" in machine:
        leaves = "".join(
            f"           |-- {address}\n              /32 host LOCAL\n" for address in machine["addresses"]
        )
        _put(root / "proc/net/fib_trie", f"Local:\n  +-- 0.0.0.0/0 3 0 5\n{leaves}")
    if "routes" in machine:
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        _put(root / "proc/net/route", "\n".join([head, *(_route(*route) for route in machine["routes"])]))
    if "default_route" in machine:
        head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT"
        row = f"{machine['default_route']}\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0"
        _put(root / "proc/net/route", f"{head}\n{row}\n")


def _route(netdev: str, network: str, gateway: str = "0.0.0.0") -> str:
    """A row of the kernel's table: numbers in the order of its bytes."""
    net = ip_network(network)
    target, via, mask = (ip_address(text).packed[::-1].hex().upper() for text in (net[0], gateway, net.netmask))
    return f"{netdev}\t{target}\t{via}\t0003\t0\t0\t0\t{mask}\t0\t0\t0"


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _link(path: Path, target: Path | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink():
        path.symlink_to(target if isinstance(target, str) else os.path.relpath(target, path.parent))
