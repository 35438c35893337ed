"""What several commands take: a fleet by file or by name, and a format."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pdctl.errors import GateError
from pdctl.fleet.names import NAME_PATTERN
from pdctl.launch.state import FleetFolder, state_root

FleetArgument = Annotated[str, typer.Argument(metavar="FLEET", help="A fleet file, or the name of a fleet that is up.")]


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--output", "-o", help="How the result is printed.")]

DrainOption = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="How long requests under way may take before a unit is ended.")
]


def fleet_file(fleet: str) -> Path:
    """The file of a fleet given by file or by name: that from which it was last brought up.

    Raises GateError (PD3013) for a name that is not known.
    """
    name = fleet_name(fleet)
    state = FleetFolder(name).read() if name == fleet else None
    return Path(state.file) if state is not None else Path(fleet)


def fleet_name(fleet: str) -> str:
    """The name of a fleet given by file or by name. Raises FleetFileError; GateError (PD3013) for an unknown name.

    Of a file only the name is read: a fleet can be looked at and taken down whatever else is wrong with its file.
    """
    if not Path(fleet).exists() and "/" not in fleet and not fleet.endswith((".yaml", ".yml")):
        if FleetFolder(fleet).path.is_dir():
            return fleet
        known = sorted(path.name for path in state_root().iterdir()) if state_root().is_dir() else []
        hint = f"known here: {', '.join(known)}" if known else "give a fleet file"
        raise GateError(f"no fleet of the name {fleet}", code="PD3013", hint=hint)
    from pdctl.fleet.source import dig, parse, read

    name = dig(parse(read(Path(fleet)), fleet).data, ("name",))
    if isinstance(name, str) and re.fullmatch(NAME_PATTERN, name):
        return name
    from pdctl.fleet import load_fleet

    return load_fleet(fleet).fleet.name
