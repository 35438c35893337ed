"""`pdctl down`."""

from pdctl.cli.common import FleetArgument, Format, FormatOption, fleet_name, given_or_here
from pdctl.cli.output import result, result_json


def command(fleet: FleetArgument = None, output: FormatOption = Format.table) -> None:
    """Take a fleet down; leave no process, port or shared memory behind.

    May be repeated. The logs stay until the fleet is brought up again.
    """
    from pdctl.up.takedown import bring_down

    name = fleet_name(given_or_here(fleet))
    ended = bring_down(name)
    if output is Format.json:
        result_json({"fleet": name, "ended": list(ended)})
    else:
        result(f"{name} is down" + (f"; ended {', '.join(ended)}" if ended else "; nothing was running"))
