"""`pdctl status`."""

import sys
import time
from typing import Any

from pdctl.cli.common import FleetArgument, Format, FormatOption, fleet_name
from pdctl.cli.output import note, paint, result, result_json, table


def command(fleet: FleetArgument, output: FormatOption = Format.table) -> int:
    """Say what runs and whether it answers; exit status 3 when the fleet is absent or degraded.

    A unit is `ready` when it answers now, `starting` when its process runs and has not answered yet, `unready` when it
    had answered and does not now.
    """
    from pdctl.up.status import fleet_status

    status = fleet_status(fleet_name(fleet))
    if output is Format.json:
        result_json(status.document())
    else:
        _print(status)
    return 0 if status.ok else 3


def _print(status: Any) -> None:
    result(f"{status.fleet}  {status.phase}" + (f"  {status.url}" if status.url else ""))
    rows = [_row(one) for one in status.units]
    if rows:
        head, *lines = table(rows, ("unit", "state", "pid", "port", "since", "restarts", "last exit"))
        result(f"  {head}")
        for one, line in zip(status.units, lines, strict=True):
            result("  " + (line if one.state == "ready" else paint(line, "red", sys.stdout)))
    for text in status.notes:
        note(text)


def _row(unit: Any) -> tuple[str, ...]:
    pid = str(unit.pid or "–")
    return (unit.name, unit.state, pid, str(unit.port), _ago(unit.since), str(unit.restarts), unit.last_exit or "")


def _ago(since: float | None) -> str:
    if not since:
        return "–"
    seconds = max(0, int(time.time() - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
