"""`pdctl down`."""

from pdctl.cli.common import FleetArgument, Format, FormatOption, given_or_here, named
from pdctl.cli.output import done_anyway, result, result_json
from pdctl.redact import clean


def command(fleet: FleetArgument = None, output: FormatOption = Format.table) -> None:
    """Take a fleet down; leave no process, port or shared memory behind.

    May be repeated. The logs stay until the fleet is brought up again.
    """
    from pdctl.cli.ending import Ending, running
    from pdctl.cli.progress import watcher
    from pdctl.launch.local import LocalLauncher
    from pdctl.launch.state import FleetFolder
    from pdctl.up.own import refuse_external
    from pdctl.up.takedown import bring_down

    name, external = named(given_or_here(fleet))
    if external:
        refuse_external(name, "down", external)
    folder = FleetFolder(name)
    launcher = LocalLauncher(folder.units)
    names = running(launcher)
    watch = watcher(max(map(len, names), default=0))
    try:
        with Ending(launcher, names, watch):
            ended = bring_down(name)
    finally:
        watch.close()
    says = f"{name} is down" + (f"; ended {', '.join(ended)}" if ended else "; nothing was running")
    with done_anyway(clean(says)):
        if output is Format.json:
            result_json({"fleet": name, "ended": list(ended)})
        else:
            result(clean(says))
