"""`pdctl down`."""

from pdctl.cli.common import FleetArgument, Format, FormatOption, fleet_name, given_or_here
from pdctl.cli.output import done_anyway, result, result_json
from pdctl.redact import clean


def command(fleet: FleetArgument = None, output: FormatOption = Format.table) -> None:
    """Take a fleet down; leave no process, port or shared memory behind.

    May be repeated. The logs stay until the fleet is brought up again.
    """
    from pdctl.up.takedown import bring_down

    name = fleet_name(given_or_here(fleet))
    ended = bring_down(name)
    says = f"{name} is down" + (f"; ended {', '.join(ended)}" if ended else "; nothing was running")
    with done_anyway(clean(says)):
        if output is Format.json:
            result_json({"fleet": name, "ended": list(ended)})
        else:
            result(clean(says))
