"""Verbs devices from /sys/class/infiniband.

Software devices (soft-RoCE) have no `device` link, no model and no port counters; they are devices all the same.
"""

import re

from .gids import read_gids
from .model import Hca, Port
from .pci import numa_of, pci_path
from .tree import Tree

CLASS = "/sys/class/infiniband"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def read_hcas(tree: Tree) -> tuple[Hca, ...]:
    """Every verbs device, in natural order (mlx5_2 before mlx5_10)."""
    nodes = _device_nodes(tree)
    return tuple(_hca(tree, name, nodes) for name in sorted(tree.names(CLASS) or (), key=natural))


def natural(name: str) -> tuple[str | int, ...]:
    """Sort key that counts digits as numbers."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _device_nodes(tree: Tree) -> dict[str, bool] | None:
    """For each device whether its uverbs node is in /dev: a container may see the one without the other."""
    present = tree.names("/dev/infiniband")
    verbs = tree.names("/sys/class/infiniband_verbs")
    if verbs is None or (present is None and tree.real("/dev") is None):
        return None
    pairs = ((tree.read(f"/sys/class/infiniband_verbs/{node}/ibdev"), node) for node in verbs)
    return {device: node in (present or ()) for device, node in pairs if device}


def _hca(tree: Tree, name: str, nodes: dict[str, bool] | None) -> Hca:
    here = f"{CLASS}/{name}"
    path = pci_path(tree, f"{here}/device")
    driver = tree.real(f"{here}/device/driver")
    physical = tree.real(f"{here}/device/physfn")
    functions = tree.read(f"{here}/device/sriov_numvfs") or "0"
    parent = tree.read(f"{here}/parent")
    netdevs = tree.names(f"{here}/device/net") or ((parent,) if parent else ())
    return Hca(
        name=name,
        node_type=_after_colon(tree.read(f"{here}/node_type")),
        driver=driver.rsplit("/", 1)[-1] if driver else None,
        model=tree.read(f"{here}/hca_type") or None,
        board=tree.read(f"{here}/board_id") or None,
        firmware=tree.read(f"{here}/fw_ver") or None,
        node_guid=tree.read(f"{here}/node_guid") or None,
        pci=path[-1] if path else None,
        pci_path=path,
        numa=_numa(tree, here, path),
        physical_function=physical.rsplit("/", 1)[-1] if physical else None,
        virtual_functions=int(functions) if functions.isdigit() else 0,
        netdevs=netdevs,
        device_node=None if nodes is None else nodes.get(name, False),
        ports=tuple(
            _port(tree, f"{here}/ports/{number}", int(number))
            for number in sorted(tree.names(f"{here}/ports") or (), key=natural)
            if number.isdigit()
        ),
    )


def _numa(tree: Tree, here: str, path: tuple[str, ...]) -> int | None:
    """The node of the device, or of the PCI function behind it: newer drivers put an auxiliary device between."""
    own = numa_of(tree, f"{here}/device/numa_node")
    return own if own is not None or not path else numa_of(tree, f"/sys/bus/pci/devices/{path[-1]}/numa_node")


def _port(tree: Tree, here: str, number: int) -> Port:
    gids, slots, faults = read_gids(tree, here)
    rate = _NUMBER.match(tree.read(f"{here}/rate") or "")
    lid = tree.read(f"{here}/lid")
    pkeys = tree.read_all(f"{here}/pkeys")
    return Port(
        number=number,
        state=_after_colon(tree.read(f"{here}/state")),
        phys_state=_after_colon(tree.read(f"{here}/phys_state")),
        link_layer=tree.read(f"{here}/link_layer") or None,
        rate_gbps=float(rate.group()) if rate else None,
        lid=_hex(lid),
        pkeys=tuple(key for name in sorted(pkeys, key=natural) if (key := _hex(pkeys[name]))),
        gids=gids,
        gid_slots=slots,
        gid_faults=faults,
        counters=_counters(tree, here),
    )


def _counters(tree: Tree, here: str) -> dict[str, int]:
    """All counters of a port. `port_xmit_data` and `port_rcv_data` count 4-byte words: given here in bytes."""
    values: dict[str, int] = {}
    for folder in ("counters", "hw_counters"):
        for name, text in tree.read_all(f"{here}/{folder}").items():
            if text is not None and text.isdigit():
                values[name] = int(text)
    for name in ("port_xmit_data", "port_rcv_data"):
        if name in values:
            values[name.replace("_data", "_bytes")] = 4 * values.pop(name)
    return values


def _after_colon(text: str | None) -> str | None:
    """`4: ACTIVE` → `ACTIVE`."""
    return text.rsplit(":", 1)[-1].strip() if text else None


def _hex(text: str | None) -> int | None:
    try:
        return int(text, 16) if text else None
    except ValueError:
        return None
