"""`pdctl status`."""

import sys
from typing import Any

from pdctl.cli.common import FleetArgument, Format, FormatOption, given_or_here, named
from pdctl.cli.output import fitted, note, paint, result, result_json, width_of
from pdctl.launch.state import DOWN
from pdctl.redact import clean_line


def command(fleet: FleetArgument = None, output: FormatOption = Format.table) -> int:
    """Say what runs and whether it answers; exit status 3 when the fleet is absent or degraded.

    A unit is `ready` when it answers now, `starting` when its process runs and has not answered yet, `unready` when it
    had answered and does not now.
    """
    from pdctl.up.status import fleet_status

    status = fleet_status(named(given_or_here(fleet)).name)
    if output is Format.json:
        result_json(status.document())
    else:
        _print(status)
    return 0 if status.ok else 3


def _print(status: Any) -> None:
    url = status.url if status.phase != DOWN else None
    result(clean_line("  ".join(filter(None, (status.fleet, status.phase, url)))))
    rows = [_row(one) for one in status.units]
    if rows:
        width = width_of(sys.stdout)
        columns = ("unit", "state", "pid", "port", "since", "restarts", "last exit")
        head, *lines = fitted(rows, columns, ("since", "pid", "restarts"), width - 2 if width else None)
        result(f"  {head}")
        for one, line in zip(status.units, lines, strict=True):
            calm = one.state == "ready" or status.phase == DOWN
            result("  " + (line if calm else paint(line, "red", sys.stdout)))
    for text in status.notes:
        note(text)


def _row(unit: Any) -> tuple[str, ...]:
    from pdctl.up.listing import age

    pid = str(unit.pid or "–")
    return (unit.name, unit.state, pid, str(unit.port), age(unit.since), str(unit.restarts), unit.last_exit or "")
