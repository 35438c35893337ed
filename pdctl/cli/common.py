"""What several commands take: a fleet by file or by name, and a format."""

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from pdctl.cli.output import note
from pdctl.cli.verbosity import tell
from pdctl.errors import GateError, InputError
from pdctl.fleet.names import NAME_PATTERN

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet

FleetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[FLEET]",
        help="A fleet file, or the name of a fleet that is up; by default fleet.yaml or pdctl.yaml of this folder.",
    ),
]
HERE = ("fleet.yaml", "pdctl.yaml")
"""Files of the current folder that are taken where no fleet is given."""


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"


FormatOption = Annotated[Format, typer.Option("--output", "-o", help="How the result is printed.")]

DrainOption = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="How long requests under way may take before a unit is ended.")
]

SkipOption = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave a phase out; may be repeated.")]


def given_or_here(fleet: str | None) -> str:
    """The fleet that was given; where none was, the one that the current folder has, and that is said.

    Raises InputError (PD0024) where it has none, or two.
    """
    if fleet is not None:
        return fleet
    found = [name for name in HERE if Path(name).is_file()]
    if len(found) == 1:
        tell(f"{found[0]} of this folder:")
        return found[0]
    if found:
        raise InputError(f"{' and '.join(found)} are both here", where="FLEET", code="PD0024", hint="give one of them")
    hint = f"give a fleet file, or the name of a fleet that is up (`pdctl ps`); `pdctl init` writes {HERE[0]}"
    message = f"no fleet is given, and this folder has no {' or '.join(HERE)}"
    raise InputError(message, where="FLEET", code="PD0024", hint=hint)


def fleet_file(fleet: str) -> Path:
    """The file of a fleet given by file or by name: that from which it was last brought up.

    Raises GateError (PD3013) for a name that is not known.
    """
    from pdctl.launch.state import FleetFolder

    name = named(fleet).name
    state = FleetFolder(name).read() if name == fleet else None
    return Path(state.file) if state is not None else Path(fleet)


class Named(NamedTuple):
    """A fleet by its name; `external`: its file, where somebody else started it."""

    name: str
    external: str | None = None


def named(fleet: str) -> Named:
    """A fleet given by file or by name. Raises FleetFileError; GateError (PD3013) for an unknown name.

    A name that is known comes first: a fleet is not to be out of reach because a folder is called like it.
    Of a file only the name is read: a fleet can be looked at and taken down whatever else is wrong with its file.
    """
    if "/" not in fleet and not fleet.endswith((".yaml", ".yml")):
        from pdctl.launch.state import known_fleets

        known = known_fleets()
        if fleet in known:  # whatever lies in the current folder
            return Named(fleet)
        if not _is_there(fleet):
            hint = f"known here: {', '.join(known[:20])}" if known else "give a fleet file"
            raise GateError(f"no fleet of the name {fleet}", code="PD3013", hint=hint)
    from pdctl.fleet.source import dig, parse, read

    data = parse(read(Path(fleet)), fleet).data
    name, kind = dig(data, ("name",)), dig(data, ("launcher", "kind"))
    is_launcher = kind in ("local", "external") or dig(data, ("launcher",)) in (None, {})
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name) or not (is_launcher or _has_state(name)):
        from pdctl.fleet import load_fleet

        name = load_fleet(fleet).fleet.name
    return Named(name, fleet if kind == "external" else None)


def _has_state(name: str) -> bool:
    from pdctl.launch.state import known_fleets

    return name in known_fleets()


def _is_there(name: str) -> bool:
    """Whether something by this name, and no folder, lies in the current one."""
    try:
        return Path(name).exists() and not Path(name).is_dir()
    except OSError:  # over-long, among others
        return False


def known_backend(name: str | None, more: Iterable[str] = ()) -> str | None:
    """A transfer backend of which something is known; of any other a green answer would be one about nothing.

    `more`: further names that the command knows. Raises InputError (PD0001) with the nearest name.
    """
    from difflib import get_close_matches

    from pdctl_transfer.rules.abilities import KNOWN_BACKENDS

    known = dict.fromkeys((*KNOWN_BACKENDS, *more))
    if name is None or name in known:
        return name
    near = get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    raise InputError(f'no backend "{name}"', where="--backend", hint=hint)


def usable(loaded: "LoadedFleet") -> "LoadedFleet":
    """A fleet that `up` would not refuse by its file; notes on standard error about flags of other versions."""
    from pdctl.engines.refusals import refuse

    for doubt in refuse(loaded):
        note(f"note: {doubt.evidence[0].source}  {doubt.params['what']}: {doubt.params['version']}")
    return loaded
