"""A host, its choice of HCAs and what to paste, as lines of text that fit a terminal."""

from collections.abc import Sequence
from typing import NamedTuple

from pdctl_topology import Choice, Hca, Host, Port, Usable, choose_gid, integrated, settings

WIDE = 200
"""Columns where the output is not a terminal."""


class Column(NamedTuple):
    """One column of the HCA table; `rank` 0 stays, higher ones go first where the terminal is narrow."""

    title: str
    rank: int


COLUMNS = (
    Column("HCA", 0),
    Column("port", 3),
    Column("state", 0),
    Column("link", 1),
    Column("Gb/s", 0),
    Column("GID", 1),
    Column("address", 2),
    Column("netdev", 2),
    Column("NUMA", 3),
    Column("PCI", 4),
    Column("model", 5),
    Column("firmware", 6),
)


def summary(host: Host) -> str:
    """One line: what is there."""
    counts = (
        _count(len(host.gpus), "GPU"),
        _count(len(host.hcas), "RDMA device"),
        _count(len(host.numa), "NUMA node") if host.numa else "NUMA unknown",
    )
    return f"{host.name}: {', '.join(counts)}" + (f", kernel {host.kernel}" if host.kernel else "")


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def unreached(host: Host) -> list[str]:
    """What to say of GPUs whose memory no adapter reaches."""
    names = dict.fromkeys(name for gpu in host.gpus if (name := integrated(gpu)) is not None)
    return [f"{name} has no memory of its own: adapters reach buffers of the host only (PD2024)." for name in names]


def nothing(host: Host) -> list[str]:
    """What to say of a host without RDMA devices."""
    lines = ["No RDMA device: /sys/class/infiniband is empty or missing. Transfers here can go over TCP only."]
    if host.modules is not None and "ib_uverbs" not in host.modules:
        lines.append("The kernel module ib_uverbs is not loaded, so a device would not show either.")
    if host.gpus:
        lines.append("In a container: pass /dev/infiniband and share the host's RDMA devices (a device plugin).")
    return lines


def devices(host: Host, choice: Choice, width: int = WIDE) -> list[str]:
    """The table of HCAs, one row a port."""
    usable = {item.hca: item for item in choice.usable}
    rows = [_row(hca, port, usable.get(hca.name), host) for hca in host.hcas for port in hca.ports]
    return fit([column.title for column in COLUMNS], rows, width)


def _row(hca: Hca, port: Port, usable: Usable | None, host: Host) -> list[str]:
    choice = usable.gid if usable is not None and usable.port == port.number else choose_gid(port, host.addresses)
    gid = choice.gid if port.link_layer != "InfiniBand" else None
    netdev = gid.netdev if gid is not None and gid.netdev else ",".join(hca.netdevs)
    bond = host.netdev(netdev)
    return [
        hca.name,
        str(port.number),
        port.state or "?",
        port.link_layer or "?",
        f"{port.rate_gbps:g}" if port.rate_gbps is not None else "?",
        str(gid.index) if gid is not None else "-",
        gid.address if gid is not None else f"lid {port.lid:#x}" if port.lid else "-",
        f"{netdev} ({'+'.join(bond.bond_slaves)})" if bond is not None and bond.bond_slaves else netdev or "-",
        "-" if hca.numa is None else str(hca.numa),
        (hca.pci or "virtual") + (f" VF of {hca.physical_function}" if hca.physical_function else ""),
        hca.model or "-",
        hca.firmware or "-",
    ]


def fit(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """A padded table without the columns that would make it wider than `width`, least needed first."""
    shown = list(range(len(titles)))
    widths = [max(len(row[at]) for row in (titles, *rows)) for at in shown]
    ranks = [column.rank for column in COLUMNS] if len(titles) == len(COLUMNS) else [0] * len(titles)
    while sum(widths[at] + 2 for at in shown) - 2 > width and (last := max(shown, key=lambda at: (ranks[at], at))):
        if ranks[last] == 0:
            break
        shown.remove(last)
    return ["  ".join(row[at].ljust(widths[at]) for at in shown).rstrip() for row in (titles, *rows)]


def use(choice: Choice) -> list[str]:
    """Which HCAs each GPU uses and why, then what is left out and why."""
    lines = ["use"]
    name_width = max((len(item.consumer) for item in choice.assignments), default=0)
    for item in choice.assignments:
        lines += [f"  {item.consumer:<{name_width}}  {pick.hca}  {pick.reason}" for pick in item.picks]
        if item.warning:
            lines.append(f"  {item.consumer:<{name_width}}  ! {item.warning}")
    if choice.excluded:
        lines += ["not used"]
        width = max(len(item.hca) for item in choice.excluded)
        lines += [f"  {item.hca:<{width}}  {item.cause}: {item.reason}" for item in choice.excluded]
    if choice.idle:
        lines += ["idle", f"  {', '.join(choice.idle)}  usable, but every GPU has a nearer one"]
    return lines


def paste(choice: Choice) -> list[str]:
    """The settings, each text whole on its line so that it can be copied."""
    items = settings(choice)
    if not items:
        return []
    lines = ["paste"]
    for item in items:
        lines += [f"  # {item.reader}" + (f": {item.note}" if item.note else ""), f"  {item.text}"]
    return lines


def gid_table(host: Host) -> list[str]:
    """Every GID in use: index, address, type, interface, and whether it is the one to use."""
    rows = []
    for hca in host.hcas:
        for port in hca.ports:
            choice = choose_gid(port, host.addresses)
            passed = {gid.index: reason for gid, reason in choice.passed_over}
            rows += [
                [
                    hca.name,
                    str(gid.index),
                    gid.address,
                    gid.kind or "?",
                    gid.netdev or "-",
                    "no: " + passed[gid.index]
                    if gid.index in passed
                    else "use: " + choice.reason
                    if gid == choice.gid
                    else "-",
                ]
                for gid in port.gids
            ]
    return fit(["HCA", "index", "address", "type", "netdev", "verdict"], rows, WIDE)
