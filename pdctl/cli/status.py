"""`pdctl status`."""

import sys
from typing import Any

from pdctl.cli.common import FleetArgument, Format, FormatOption, given_or_here, named
from pdctl.cli.output import fitted, note, paint, result, result_json, width_of
from pdctl.launch.state import DOWN, ROUTER
from pdctl.redact import clean_line


def command(fleet: FleetArgument = None, output: FormatOption = Format.table) -> int:
    """Say what runs and whether it answers; exit status 3 when the fleet is absent or degraded.

    Of an external fleet, which pdctl did not start, every engine and the router are asked: model, role, version, and
    whether the router gives it requests. What one does not show is said, never taken for right.

    A unit is `ready` when it answers now, `starting` when its process runs and has not answered yet, `unready` when it
    had answered and does not now.
    """
    from pdctl.running import find
    from pdctl.up.status import status_of

    status = status_of(find(*named(given_or_here(fleet))))
    if output is Format.json:
        result_json(status.document())
    else:
        _print(status)
    return 0 if status.ok else 3


def _print(status: Any) -> None:
    url = status.url if status.phase != DOWN else None
    result(clean_line("  ".join(filter(None, (status.fleet, status.phase, url)))))
    asked = [one for one in status.units if one.heard is not None]
    rows = [_asked_row(one) for one in asked] if asked else [_row(one) for one in status.units]
    columns, droppable = (_ASKED, ("version", "model", "role")) if asked else (_OWN, ("since", "pid", "restarts"))
    if rows:
        width = width_of(sys.stdout)
        head, *lines = fitted(rows, columns, droppable, width - 2 if width else None)
        result(f"  {head}")
        for one, line in zip(status.units, lines, strict=True):
            calm = one.state == "ready" or status.phase == DOWN
            result("  " + (line if calm else paint(line, "red", sys.stdout)))
    for line in _ways(status):
        result(f"  {line}")
    for text in status.notes:
        note(text)


def _ways(status: Any) -> list[str]:
    """A line for each pair of engines that were told of the transfer core, below the units."""
    rows = [
        (one.unit, name or way.peer, way.way, way.code, way.reason)
        for one in status.carried.values()
        for way, name in one.ways
    ]
    if not rows:
        return []
    width = width_of(sys.stdout)
    return fitted(rows, ("pair of", "with", "way", "code", "reason"), ("reason",), width - 2 if width else None)


_OWN = ("unit", "state", "pid", "port", "since", "restarts", "last exit")
_ASKED = ("unit", "state", "at", "model", "role", "version", "routed")


def _row(unit: Any) -> tuple[str, ...]:
    from pdctl.up.listing import age

    pid = str(unit.pid or "–")
    return (unit.name, unit.state, pid, str(unit.port), age(unit.since), str(unit.restarts), unit.last_exit or "")


def _asked_row(unit: Any) -> tuple[str, ...]:
    """Of a member that answers; what it does not show is not left blank."""
    answers, at = unit.heard.document(), unit.url.partition("://")[2]
    if unit.role == ROUTER or unit.state == "unreachable":
        return (unit.name, unit.state, at, "", "", "", "")
    routed = {True: "yes", False: "no", None: _HIDDEN}[answers["routed"]]
    model = ", ".join(answers["model"] or ()) or _HIDDEN
    return (unit.name, unit.state, at, model, answers["role"] or _HIDDEN, answers["version"] or _HIDDEN, routed)


_HIDDEN = "not shown"
