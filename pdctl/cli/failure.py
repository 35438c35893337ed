"""How an error becomes a message on standard error and an exit status."""

import os
import sys
import textwrap
import traceback
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from pdctl.cli.output import paint, width_of
from pdctl.cli.streams import ENDS_UNHEARD
from pdctl.redact import clean, clean_line, hide

_DEBUG = "PDCTL_DEBUG=1 shows the traceback"


def report(error: Exception) -> int:
    """Print `error CODE where  message`, then the hint; return the exit status of the contract."""
    import typer

    from pdctl.errors import FleetFileError, OutputError, PdctlError
    from pdctl_transfer.errors import ManifestError, TransferError

    if os.environ.get("PDCTL_DEBUG"):
        traceback.print_exception(error)
    match error:
        case OutputError(reader_gone=True):
            return ENDS_UNHEARD
        case FleetFileError():
            for fault in (error, *error.others):
                _say(2, fault.code, fault.where, fault.message, fault.hint)
            return 2
        case PdctlError():
            return _say(error.exit_code, error.code, getattr(error, "where", None), error.message, error.hint)
        case ManifestError():
            return _say(2, error.code, error.source, f"{error.path or '$'}: {error.reason}", None)
        case TransferError():
            return _say(1, error.code, None, error.message, None)
        case typer.TyperException():
            return _usage(error)
        case typer.Abort():
            return 130
        case OSError():
            named = ": ".join(str(name) for name in (error.filename,) if name is not None)
            reason = (error.strerror or str(error)).lower()
            return _say(1, "PD0044", None, f"{named}: {reason}" if named else reason, _DEBUG)
        case MemoryError():
            return _say(1, "PD0044", None, "not enough memory", _DEBUG)
    where = _raised_at(error)
    message = f"unexpected {type(error).__name__}: {error}"
    return _say(1, "PD0000", where, message, f"this is a fault of pdctl; {_DEBUG}")


def _usage(error: Exception) -> int:
    """An error of the option parser: in our shape, with the nearest option."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "pdctl"
    message = str(getattr(error, "message", "") or error.format_message())  # type: ignore[attr-defined]
    given = str(getattr(error, "option_name", ""))
    near = get_close_matches(given, getattr(error, "possibilities", None) or [], n=1)
    hint = f"did you mean {near[0]}?" if near else f"`{command} --help` says what it takes"
    if getattr(error, "param", None) is not None:
        message = error.format_message()  # type: ignore[attr-defined]
    return _say(2, "PD0001", command, message.rstrip("."), hint)


def _say(status: int, code: str, where: str | None, message: str, hint: str | None) -> int:
    """`error CODE WHERE  MESSAGE` and the hint below it, on a terminal wrapped to its width."""
    place = f" {clean_line(hide(where))}" if where else ""
    text = f"error {code}{place}  {clean(hide(message))}"
    if hint:
        text += "\n" + textwrap.indent(clean(hide(hint)), "  ")
    width = width_of(sys.stderr)
    if width is not None:
        text = "\n".join(_fitted(line, width) for line in text.split("\n"))
    with suppress(OSError):
        sys.stderr.write(paint("error", "bold red") + text.removeprefix("error") + "\n")
    return status


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
