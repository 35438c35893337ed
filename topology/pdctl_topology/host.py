"""One pass over a machine's files → Host."""

from .gpus import read_gpus
from .hcas import natural, read_hcas
from .model import Host, Numa
from .netdevs import read_addresses, read_netdevs, read_policy_routing
from .tree import Tree

NODES = "/sys/devices/system/node"


def read_host(tree: Tree) -> Host:
    """The machine that `tree` shows. Never raises for what is missing: that reads as none or unknown."""
    modules = tree.read("/proc/modules")
    return Host(
        name=tree.read("/proc/sys/kernel/hostname") or "this host",
        kernel=tree.read("/proc/sys/kernel/osrelease"),
        hcas=read_hcas(tree),
        netdevs=read_netdevs(tree),
        gpus=read_gpus(tree),
        numa=_numa(tree),
        addresses=read_addresses(tree),
        modules=None if modules is None else frozenset(line.split()[0] for line in modules.splitlines()),
        policy_routing=read_policy_routing(tree),
    )


def _numa(tree: Tree) -> tuple[Numa, ...]:
    names = sorted((name for name in tree.names(NODES) or () if name.removeprefix("node").isdigit()), key=natural)
    return tuple(_node(tree, f"{NODES}/{name}", int(name.removeprefix("node"))) for name in names)


def _node(tree: Tree, here: str, node: int) -> Numa:
    lines = (tree.read(f"{here}/meminfo") or "").splitlines()
    memory = next((line.split() for line in lines if "MemTotal" in line), None)
    pages = {
        size.removeprefix("hugepages-"): int(free)
        for size in tree.names(f"{here}/hugepages") or ()
        if (free := tree.read(f"{here}/hugepages/{size}/free_hugepages") or "").isdigit()
    }
    return Numa(node, tree.read(f"{here}/cpulist"), int(memory[-2]) * 1024 if memory else None, pages)
