"""`pdctl preflight`: are the hosts of a fleet, or this one, fit to run it?"""

import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.cli.verbosity import tell
from pdctl.errors import InputError
from pdctl.inputs import is_file

if TYPE_CHECKING:
    from pdctl.preflight.document import Facts
    from pdctl.preflight.snapshot import Snapshot
    from pdctl.report import Report
    from pdctl_transfer.rules.outcome import Outcome


class Form(StrEnum):
    """Forms of a report."""

    table = "table"
    short = "short"
    json = "json"
    junit = "junit"
    sarif = "sarif"


class FailOn(StrEnum):
    """From which severity on the exit status tells."""

    error = "error"
    warning = "warning"


class Protocol(StrEnum):
    """How transfers go."""

    rdma = "rdma"
    tcp = "tcp"


BETWEEN_TRIES = 5.0
"""Seconds."""


def command(
    fleet: Annotated[Path | None, typer.Argument(help="Fleet file; none: judge this host.", metavar="[FLEET]")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Move real blocks between the hosts of every pair.")] = False,
    output: Annotated[Form, typer.Option("--output", "-o", help="Form of the report.")] = Form.table,
    ignore: Annotated[str, typer.Option(metavar="CODES", help="Do not fail on these codes, separated by commas.")] = "",
    fail_on: Annotated[FailOn, typer.Option(help="What makes the exit status not 0.")] = FailOn.error,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="Try again until no error is left, this long.")] = 0.0,
    protocol: Annotated[Protocol | None, typer.Option(help="Without FLEET: rdma where there is a device.")] = None,
    device: Annotated[
        list[str] | None, typer.Option(help="Without FLEET: RDMA device to use; may be repeated.")
    ] = None,
    backend: Annotated[str, typer.Option(help="Without FLEET: mooncake or nixl.")] = "mooncake",
    environment: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Without FLEET: virtual environment of the engine, looked into.")
    ] = None,
    facts: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Judge hosts as captured in this file, offline; may be repeated."),
    ] = None,
    save_facts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what was read of the hosts, for --facts.")
    ] = None,
) -> int:
    """Judge the hosts that a fleet is to run on: devices, GIDs, limits, libraries, ports, addresses, clocks.

    With --probe also move blocks of the fleet's real layout between the hosts of every prefill/decode pair, in both
    directions, check every byte, and say what carried them and how fast. What was read can be kept (--save-facts) and
    judged again elsewhere, with nothing to reach (--facts).
    """
    from pdctl.report import emit, exit_status

    if fleet is not None and (protocol or device or environment):
        raise InputError("the fleet file says this", where="--protocol, --device, --environment", hint="edit the file")
    if probe and fleet is None:
        raise InputError("a probe needs a fleet file: it moves blocks of its layout", where="--probe")
    if backend not in ("mooncake", "nixl"):
        raise InputError(f'found "{backend}", expected mooncake or nixl', where="--backend")
    if not 0 <= wait < float("inf"):
        raise InputError(f"found {wait:g}, expected seconds from 0", where="--wait")
    if environment is not None and not facts and not is_file(environment / "bin" / "python"):
        message = f"{environment} is no virtual environment: it holds no bin/python"
        raise InputError(message, where="--environment", hint="give the folder in which the engine is installed")

    if facts and (probe or wait or save_facts):
        hint = "leave --facts out to ask the hosts themselves"
        raise InputError("captured hosts do not change", where="--probe, --wait, --save-facts", hint=hint)
    from pdctl.preflight.document import read_facts_files

    captured = read_facts_files(facts or ())

    def look() -> "tuple[Outcome, ...]":
        if fleet is not None:
            return _of_fleet(fleet, probe, captured, save_facts)
        from pdctl.preflight.run import here_snapshot, judge_here

        where = str(environment) if environment else None
        snapshot = here_snapshot(backend, protocol, tuple(device or ()), where, captured)
        _save(snapshot, save_facts)
        return judge_here(snapshot)

    report = _report_when_ready(look, wait, frozenset(filter(None, ignore.upper().replace(" ", "").split(","))))
    emit(report, output.value)
    return exit_status(report, fail_on.value)


def _of_fleet(path: Path, probe: bool, captured: "Sequence[Facts]", save_facts: Path | None) -> "tuple[Outcome, ...]":
    from pdctl.check.exposed import exposed
    from pdctl.check.limits import transport_limits
    from pdctl.engines.refusals import refuse
    from pdctl.fleet.load import load_fleet
    from pdctl.preflight.rules import judge
    from pdctl.preflight.run import fleet_snapshot

    loaded = load_fleet(path)
    doubts = refuse(loaded)
    snapshot = fleet_snapshot(loaded, captured)
    _save(snapshot, save_facts)
    outcomes = (*doubts, *judge(snapshot), *exposed(loaded), *transport_limits(loaded))
    if not probe:
        return outcomes
    from pdctl.preflight.probe import probe_fleet

    return (*outcomes, *probe_fleet(loaded, snapshot, tell))


def _save(snapshot: "Snapshot", path: Path | None) -> None:
    """Write what was read, in one step. Raises InputError (PD0025)."""
    if path is None:
        return
    from pdctl.files import replace
    from pdctl.preflight.document import encode, facts_of_snapshot
    from pdctl.preflight.wants import transfer_variables
    from pdctl.redact import hide_env

    try:
        facts = facts_of_snapshot(snapshot, hide_env(transfer_variables()), time.time())
        replace(path, encode(facts), mode=0o666)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"cannot be written: {reason}", where=str(path), code="PD0025") from error


def _report_when_ready(look: "Callable[[], tuple[Outcome, ...]]", wait: float, ignore: frozenset[str]) -> "Report":
    """The first report without errors, or the last one when the time is over."""
    from pdctl.report import make_report

    begun = time.monotonic()
    while True:
        start = time.monotonic()
        outcomes = look()
        report = make_report("preflight", outcomes, ignore=ignore, seconds=time.monotonic() - start)
        left = begun + wait - time.monotonic()
        if report.ok or left <= 0:
            return report
        tell(f"{report.summary.error} errors, again in {min(BETWEEN_TRIES, left):.0f} s, for {left:.0f} s more")
        time.sleep(min(BETWEEN_TRIES, left))
