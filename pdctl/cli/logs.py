"""`pdctl logs`."""

from pathlib import Path
from typing import Annotated

import typer

from pdctl.cli.common import FleetArgument, fleet_name, given_or_here
from pdctl.errors import InputError


def command(
    fleet: FleetArgument = None,
    unit: Annotated[str | None, typer.Argument(help="A unit, such as prefill-0; all of them if left out.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written, until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines of each.")] = None,
) -> None:
    """Print or follow the log of a unit, or of all.

    With more than one unit each line begins with its name.
    """
    from pdctl.launch.local import LocalLauncher
    from pdctl.launch.state import FleetFolder
    from pdctl.up.logs import follow_logs, print_logs

    name = fleet_name(given_or_here(fleet))
    folder = FleetFolder(name)
    launcher = LocalLauncher(folder.units)
    state = folder.read()
    known = [entry.name for entry in state.units if entry.name in launcher.known()] if state else list(launcher.known())
    if unit is not None and unit not in known:
        raise InputError(f"{name} has no unit {unit}", code="PD3015", hint=f"it has {', '.join(known) or 'none'}")
    logs: dict[str, Path] = {one: launcher.log(one) for one in ([unit] if unit else known)}
    offsets = print_logs(logs, tail, typer.echo)
    if follow:
        follow_logs(logs, offsets, typer.echo)
