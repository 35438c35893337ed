"""How an error becomes a message on standard error, a document where one was asked for, and an exit status."""

import os
import re
import sys
import textwrap
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from pdctl.cli.fault import Fault
from pdctl.cli.output import paint, width_of
from pdctl.cli.streams import ENDS_UNHEARD
from pdctl.redact import clean, clean_line, hide

#: What the option parser says, and how people say it.
_PLAIN_WORDS = (
    (r"is not a valid int( range)?$", "is not a whole number"),
    (r"is not a valid float( range)?$", "is not a number"),
    (r"is not in the range x>=(\S+)$", r"is less than \1"),
)
_DEBUG = "PDCTL_DEBUG=1 shows the traceback"
MOST_FAULTS = 20
"""Of one file; what is wrong with the rest shows when these are mended."""


def report(error: Exception, argv: Sequence[str] = ()) -> int:
    """Print `error CODE where  message`, then the hint; return the exit status of the contract.

    Where `argv` asks for JSON, JUnit or SARIF, the same goes to standard output as a report.
    """
    import typer

    from pdctl.errors import OutputError

    if os.environ.get("PDCTL_DEBUG"):
        traceback.print_exception(error)
    match error:
        case OutputError(reader_gone=True):
            return ENDS_UNHEARD
        case typer.Abort():
            return 130
    status, faults = _faults_of(error)
    for fault in faults:
        _say(fault)
    if not isinstance(error, OutputError):
        try:
            _document(argv, faults)
        except OutputError as lost:
            return report(lost)
    return status


def _document(argv: Sequence[str], faults: Sequence[Fault]) -> None:
    from pdctl.cli.refusal import asked_form, print_document

    form = asked_form(argv)
    if form is not None:
        command = next((word for word in argv if not word.startswith("-")), "pdctl")
        print_document(command, faults, form)
        sys.stdout.flush()


def _faults_of(error: Exception) -> tuple[int, list[Fault]]:
    """The exit status, and what is wrong in words."""
    import typer

    from pdctl.errors import FleetFileError, PdctlError
    from pdctl_transfer.errors import ManifestError, TransferError

    match error:
        case FleetFileError():
            faults = [Fault(one.code, one.where, one.message, one.hint) for one in (error, *error.others)]
            if len(faults) > MOST_FAULTS:
                more = f"and {len(faults) - MOST_FAULTS} more like these"
                faults = [*faults[:MOST_FAULTS], Fault(error.code, faults[MOST_FAULTS].where, more)]
            return 2, faults
        case PdctlError():
            where = getattr(error, "where", None)
            return error.exit_code, [Fault(error.code, where, error.message, error.hint)]
        case ManifestError():
            return 2, [Fault(error.code, error.source, f"{error.path or '$'}: {error.reason}")]
        case TransferError():
            return 1, [Fault(error.code, None, error.message)]
        case typer.TyperException():
            return 2, [_usage(error)]
        case OSError():
            reason = (error.strerror or str(error)).lower()
            named = f"{error.filename}: " if error.filename is not None else ""
            return 1, [Fault("PD0044", None, f"{named}{reason}", _DEBUG)]
        case MemoryError():
            return 1, [Fault("PD0044", None, "not enough memory", _DEBUG)]
    message, hint = f"unexpected {type(error).__name__}: {error}", f"this is a fault of pdctl; {_DEBUG}"
    return 1, [Fault("PD0000", _raised_at(error), message, hint)]


def _usage(error: Exception) -> Fault:
    """An error of the option parser: in our shape, with the nearest option."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "pdctl"
    message = str(getattr(error, "message", "") or error.format_message())  # type: ignore[attr-defined]
    given = str(getattr(error, "option_name", ""))
    near = get_close_matches(given, getattr(error, "possibilities", None) or [], n=1)
    hint = f"did you mean {near[0]}?" if near else f"`{command} --help` says what it takes"
    if getattr(error, "param", None) is not None:
        message = error.format_message()  # type: ignore[attr-defined]
    message = message.rstrip(".")
    for pattern, words in _PLAIN_WORDS:
        message = re.sub(pattern, words, message)
    return Fault("PD0001", command, message, hint)


def _say(fault: Fault) -> None:
    """`error CODE WHERE  MESSAGE` and the hint below it, on a terminal wrapped to its width."""
    place = f" {clean_line(hide(fault.where))}" if fault.where else ""
    text = f"error {fault.code}{place}  {clean(hide(fault.message))}"
    if fault.hint:
        text += "\n" + textwrap.indent(clean(hide(fault.hint)), "  ")
    width = width_of(sys.stderr)
    if width is not None:
        text = "\n".join(_fitted(line, width) for line in text.split("\n"))
    with suppress(OSError):
        sys.stderr.write(paint("error", "bold red") + text.removeprefix("error") + "\n")


def _fitted(line: str, width: int) -> str:
    """The line over as many as it needs. Lines of a log, behind their bar, stay whole: they may be looked for."""
    if len(line) <= width or line.lstrip().startswith("|"):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(
        line.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def _raised_at(error: Exception) -> str | None:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else None
