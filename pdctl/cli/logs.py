"""`pdctl logs`."""

import sys
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from pdctl.cli.common import FleetArgument, given_or_here, named
from pdctl.cli.output import note, result
from pdctl.errors import InputError
from pdctl.redact import clean, hide, plain


def command(
    fleet: FleetArgument = None,
    units: Annotated[
        list[str] | None, typer.Argument(metavar="[UNIT]...", help="Units, such as prefill-0; all if left out.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written, until Ctrl-C.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines of each.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="10m|TIME", help="Only what is not older: 30s, 10m, 2h, 1d ago; 11:30; 2026-12-01T11:30."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="As it was written: colours, control characters, secrets, lines of any length."),
    ] = False,
) -> int:
    """Print or follow the logs of some units, or of all.

    With more than one unit each line begins with its name, and lines come in the order of the times that they carry.
    Of an external fleet they are the files that its fleet file gives; one that cannot be read is said, and the exit
    status is 2. What sounds secret is left out, and on a terminal what it would obey is shown instead.
    """
    from pdctl.running import find
    from pdctl.running.logs import logs_of
    from pdctl.up.lines import LONGEST
    from pdctl.up.logs import follow_logs, print_logs

    begin = _moment(since)
    logs, faults = logs_of(find(*named(given_or_here(fleet))), units or ())
    for fault in faults:
        note(f"{fault.code}  {f'{fault.where}  ' if fault.where else ''}{fault.message}")
    write = partial(_write, _as_it_is if raw else _readable if sys.stdout.isatty() else hide, follow)
    offsets = print_logs(logs, tail, write, begin, sys.maxsize if raw else LONGEST)
    if follow:
        follow_logs(logs, offsets, write, note)
    return InputError.exit_code if faults else 0


def _write(shown: Callable[[str], str], at_once: bool, line: str) -> None:
    result(shown(line))
    if at_once:
        sys.stdout.flush()


def _as_it_is(line: str) -> str:
    return line


def _readable(line: str) -> str:
    """For a terminal. Colours are left out: they say nothing that is worth an escape in the line."""
    return clean(hide(plain(line)), None)


def _moment(since: str | None) -> float | None:
    """Unix time. Raises InputError (PD0001)."""
    if since is None:
        return None
    from pdctl.up.merged import moment

    found = moment(since, datetime.now())
    if found is None:
        hint = "30s, 10m, 2h or 1d ago, 11:30 of today, or 2026-12-01T11:30"
        raise InputError(f'found "{since}", expected a length or a time', where="--since", hint=hint)
    return found
