"""GPUs, HCAs and NUMA nodes as a tree a person can read: what hangs below which host bridge."""

from collections.abc import Iterable

from pdctl_topology import Choice, Gpu, Hca, Host

Leaf = tuple[tuple[str, ...], str]
"""PCI path and the line to show."""


def draw(host: Host, choice: Choice) -> list[str]:
    """One branch a NUMA node, one below it for each port of a host bridge, devices as leaves."""
    lines = [host.name]
    groups = _by_node(host, choice)
    for number, (title, leaves) in enumerate(groups):
        last = number == len(groups) - 1
        lines.append(("└── " if last else "├── ") + title)
        lines += [("    " if last else "│   ") + line for line in _bridges(leaves)]
    return lines


def _by_node(host: Host, choice: Choice) -> list[tuple[str, list[Leaf]]]:
    cpus = {numa.node: numa.cpus for numa in host.numa}
    leaves: dict[int | None, list[Leaf]] = {numa.node: [] for numa in host.numa}
    for gpu in host.gpus:
        leaves.setdefault(gpu.numa, []).append((gpu.pci_path, _gpu(gpu)))
    for hca in host.hcas:
        leaves.setdefault(hca.numa, []).append((hca.pci_path, _hca(hca, choice)))
    order = sorted(leaves, key=lambda node: (node is None, node or 0))
    return [(_node_title(node, cpus.get(node) if node is not None else None), leaves[node]) for node in order]


def _node_title(node: int | None, cpus: str | None) -> str:
    if node is None:
        return "no NUMA node given"
    return f"NUMA {node}" + (f"  cpus {cpus}" if cpus else "")


def _gpu(gpu: Gpu) -> str:
    return f"GPU {gpu.index}  {gpu.pci}" + (f"  {gpu.model}" if gpu.model else f"  {gpu.vendor}")


def _hca(hca: Hca, choice: Choice) -> str:
    fault = next((item for item in choice.excluded if item.hca == hca.name), None)
    link = next((port.link_layer for port in hca.ports), None) or "?"
    text = f"{hca.name}  {hca.pci or 'virtual'}  {hca.rate_gbps:g} Gb/s {link}"
    if fault is not None:
        return f"{text}  ✗ {fault.cause}"
    users = [item.consumer for item in choice.assignments if any(pick.hca == hca.name for pick in item.picks)]
    return f"{text}  ✓ " + (", ".join(users) if users else "idle")


def _bridges(leaves: list[Leaf]) -> Iterable[str]:
    """Leaves below the port of the host bridge that they share; those without a PCI path stand alone."""
    ports: dict[tuple[str, ...], list[str]] = {}
    for path, text in leaves:
        ports.setdefault(path[:2] if len(path) > 2 else path[:1], []).append(text)
    for number, (port, texts) in enumerate(ports.items()):
        last = number == len(ports) - 1
        yield ("└── " if last else "├── ") + (" ".join(port) if port else "virtual")
        for at, text in enumerate(texts):
            yield ("    " if last else "│   ") + ("└── " if at == len(texts) - 1 else "├── ") + text
