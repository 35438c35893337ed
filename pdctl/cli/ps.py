"""`pdctl ps`."""

import sys
from typing import Any

from pdctl.cli.common import Format, FormatOption
from pdctl.cli.output import note, paint, result, result_json, table
from pdctl.redact import clean_line


def command(output: FormatOption = Format.table) -> int:
    """List the fleets of this user: phase, how many units are ready, where the router is, and for how long.

    Fleets that were taken down stay listed while their logs are there. Exit status 3 if one cannot be read; whether a
    fleet is whole is `pdctl status FLEET`'s to say.
    """
    from pdctl.launch.state import state_root
    from pdctl.up.listing import all_fleets

    fleets = all_fleets()
    if output is Format.json:
        result_json({"fleets": [one.document() for one in fleets]})
    elif not fleets:
        note(f"no fleet is known in {state_root()}; `pdctl up FLEET` brings one up")
    else:
        _print(fleets)
    return 3 if any(one.problem for one in fleets) else 0


def _print(fleets: Any) -> None:
    from pdctl.up.listing import age

    rows = []
    for one in fleets:
        units = "–" if one.problem else f"{one.ready}/{one.total}"
        phase = one.phase + (" (busy)" if one.busy else "")
        rows.append((clean_line(one.fleet, 64), phase, units, age(one.since), one.url or "–"))
    head, *lines = table(rows, ("fleet", "phase", "ready", "since", "url"))
    result(head)
    for one, line in zip(fleets, lines, strict=True):
        bad = one.problem or (one.phase == "up" and not one.ok)
        result(paint(line, "red", sys.stdout) if bad else line)
    for one in fleets:
        if one.problem:
            note(clean_line(f"{one.fleet}: {one.problem}; `pdctl down {one.fleet}` ends what it may have described"))
