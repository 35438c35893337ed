"""`pdctl restart`."""

from typing import Annotated

import typer

from pdctl.cli.common import DrainOption, FleetArgument, Format, FormatOption, SkipOption, fleet_file, given_or_here


def command(
    fleet: FleetArgument = None,
    units: Annotated[
        list[str] | None, typer.Argument(metavar="[UNIT]...", help="Units, such as decode-0; all of them if left out.")
    ] = None,
    skip_phase: SkipOption = None,
    drain: DrainOption = 30.0,
    output: FormatOption = Format.table,
) -> None:
    """Restart units of a fleet that is up, in order: prefill, decode, others, the router.

    The router gives a unit no further requests and those under way are waited for; then it is ended, started from the
    same command line, and proved as by `up`. What has changed in the fleet file is `up`'s to restart.
    """
    from pdctl.cli.progress import watcher
    from pdctl.cli.up import check_phases, say
    from pdctl.fleet import load_fleet
    from pdctl.up.phases import NAMES
    from pdctl.up.restart import restart

    check_phases(skip_phase or ())
    loaded = load_fleet(fleet_file(given_or_here(fleet)))
    watch = watcher(max(map(len, NAMES)))
    try:
        state = restart(loaded, units or (), watch, drain, skip_phase or ())
    finally:
        watch.close()
    say(state, watch, output)
