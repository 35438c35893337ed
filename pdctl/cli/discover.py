"""`pdctl discover`: the RDMA adapters and GPUs of this machine, how they lie to each other, and which to use."""

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pdctl.cli.output import note, result
from pdctl.errors import InputError
from pdctl.hosts import view
from pdctl.inputs import is_folder
from pdctl.redact import clean, clean_json
from pdctl_topology import Choice, FolderTree, Host, choose, read_host, settings

SCHEMA = "pdctl.discover/v1"


class Form(StrEnum):
    """How to print what was found."""

    table = "table"
    json = "json"
    drawing = "drawing"


class Layer(StrEnum):
    """A link layer, as an option."""

    infiniband = "infiniband"
    ethernet = "ethernet"


LAYERS = {Layer.infiniband: "InfiniBand", Layer.ethernet: "Ethernet"}


def command(
    output: Annotated[Form, typer.Option("--output", "-o", help="Form of the result.")] = Form.table,
    root: Annotated[Path, typer.Option(help="Read /sys, /proc and /dev below this folder.", metavar="DIR")] = Path("/"),
    link_layer: Annotated[
        Layer | None, typer.Option(help="Use adapters of this link layer; by default that of most bandwidth.")
    ] = None,
    gids: Annotated[bool, typer.Option("--gids", help="Show every GID and why it is used or not.")] = False,
) -> int:
    """Show this host's RDMA adapters, GPUs and how they lie; say which adapters each GPU should use, and why.

    Ends with the settings to paste into engines, UCX, NCCL and Kubernetes.
    """
    hint = "give the folder that holds sys/, proc/ and dev/"
    if not is_folder(root):
        raise InputError(f"no folder {root}", where="--root", hint=hint)
    if not is_folder(root / "sys"):
        raise InputError(f"{root} is no root of a system: it holds no sys/", where="--root", hint=hint)
    host = read_host(FolderTree(root))
    notes: list[str] = []
    if root == Path("/"):
        host, notes = _second_opinions(host)
    choice = choose(host, LAYERS[link_layer] if link_layer else None)
    if output is Form.json:
        result(clean_json(_document(host, choice)))
        return 0
    _print(host, choice, output, gids)
    for line in notes:
        note(line)
    return 0


def _print(host: Host, choice: Choice, output: Form, gids: bool) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else view.WIDE
    lines = [view.summary(host), *view.unreached(host)]
    if not host.hcas:
        lines += ["", *view.nothing(host)]
    elif output is Form.table:
        lines += ["", *view.devices(host, choice, width), "", *view.use(choice)]
    if output is Form.drawing:
        from pdctl.hosts.drawing import draw

        lines += ["", *draw(host, choice)]
    if gids and host.hcas:
        lines += ["", *view.gid_table(host)]
    if output is Form.table and choice.hcas:
        lines += ["", *view.paste(choice)]
    result(clean("\n".join(lines), None))


def _document(host: Host, choice: Choice) -> str:
    import msgspec

    document = {"schema": SCHEMA, "host": host, "choice": choice, "settings": settings(choice)}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def _second_opinions(host: Host) -> tuple[Host, list[str]]:
    """What libibverbs and NVML, if they can be asked, add to what sysfs says, and where they see something else."""
    from msgspec import structs

    from pdctl_topology.gpus import named, nvml_gpus
    from pdctl_topology.verbs import disagreements, read_verbs

    notes = []
    verbs = read_verbs()
    if verbs is not None:
        notes += [f"libibverbs disagrees: {text}" for text in disagreements(host, verbs)]
    nvml = nvml_gpus()
    if nvml is None:
        return host, notes
    here, there = [gpu.pci for gpu in host.gpus if gpu.vendor == "nvidia"], [address for address, _, _ in nvml]
    if here != there:
        notes.append(f"NVML disagrees: it sees {', '.join(there)}; sysfs {', '.join(here)}")
    return structs.replace(host, gpus=named(host.gpus, nvml)), notes
