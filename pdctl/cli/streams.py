"""The standard streams of the process: one that is closed, full or left by its reader is told, not stumbled over.

Standard output fails as `OutputError`, which nothing else raises, so that a full disk there is told from one anywhere
else. Standard error fails in silence: there is nobody left to tell, and what is under way goes on.
"""

import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import TypeVar

ENDS_UNHEARD = 141
"""Exit status where the reader of standard output has gone: what shells give a program that SIGPIPE ended."""


def settle() -> None:
    """Put these streams in place of Python's own. Called once, before anything else opens a file."""
    for descriptor, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        # What is opened takes the lowest free number: a state file must not become standard output. Nothing can be
        # written to this 1, so that a result that gets lost is told.
        if not _is_open(descriptor):
            os.open(os.devnull, flags)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  as long as the process
    sys.stdout = _made(_Results, sys.stdout, 1)
    sys.stderr = _made(_Notes, sys.stderr, 2)


class _Results(TextIOWrapper):
    """Standard output."""

    def write(self, text: str, /) -> int:
        if text == "":  # how the option parser finds out whether this takes text; no failure may get lost there
            return 0
        try:
            return super().write(text)
        except OSError as error:
            raise _lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise _lost(error) from error


class _Notes(TextIOWrapper):
    """Standard error."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            _silence(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _silence(2)


_Kind = TypeVar("_Kind", _Results, _Notes)


def _made(kind: type[_Kind], stream: object, descriptor: int) -> _Kind:
    """In place of a stream that Python made, or could not make. A mark that the encoding lacks is no failure."""
    if not isinstance(stream, TextIOWrapper):
        return kind(open(descriptor, "wb", closefd=False), "utf-8", "backslashreplace")
    made = kind(stream.buffer, stream.encoding, "backslashreplace")
    made.reconfigure(line_buffering=stream.line_buffering, write_through=stream.write_through)
    return made


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _lost(error: OSError) -> Exception:
    """Said once: what is still to be written, also by the interpreter at its end, goes nowhere."""
    from pdctl.errors import OutputError

    _silence(1)
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"cannot write standard output: {reason}", reader_gone=isinstance(error, BrokenPipeError))


def _silence(descriptor: int) -> None:
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, descriptor)
        os.close(null)
