"""Where output goes: results to standard output, everything else to standard error; colour only on a terminal."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from pdctl.errors import OutputError
from pdctl.redact import clean, clean_json, clean_line, hide

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def colourful(stream: TextIO) -> bool:
    """Whether `stream` may be coloured: a terminal, not a dumb one, and NO_COLOR not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, style: str, stream: TextIO | None = None) -> str:
    """`text` in a style such as "bold red", where the stream (standard error by default) takes colour."""
    if not colourful(stream or sys.stderr):
        return text
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m"


def width_of(stream: TextIO) -> int | None:
    """Columns of the terminal behind `stream`; None where it is no terminal."""
    if not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    try:
        width = int(columns) if columns.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except OSError:
        width = 0
    return width or 80


def note(text: str, mark: str = "") -> None:
    """One line of progress: `mark` as it is, then a text that may have come from anywhere."""
    with suppress(OSError):  # nobody listens any more; what is under way goes on
        sys.stderr.write(f"{mark}{clean(hide(text))}\n")
        sys.stderr.flush()


@contextmanager
def done_anyway(what: str) -> Iterator[None]:
    """Print the result of what is done and stays done: where that fails, `what` is said on standard error instead."""
    try:
        yield
        sys.stdout.flush()
    except OutputError as error:
        note(f"{what}; {error.message}")


def result(text: str) -> None:
    """One line of a result. Text from elsewhere is cleaned before: here it may be coloured."""
    sys.stdout.write(text + "\n")


def result_json(document: Any) -> None:
    """A result for machines: keys in the order given, one document."""
    sys.stdout.write(clean_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


def fitted(
    rows: Sequence[tuple[str, ...]], header: tuple[str, ...], droppable: Sequence[str], width: int | None
) -> list[str]:
    """Lines of a table of at most `width` columns of the terminal: without these of its columns, as far as needed."""
    for dropped in range(len(droppable) + 1):
        kept = [place for place, name in enumerate(header) if name not in droppable[:dropped]]
        lines = table([tuple(row[i] for i in kept) for row in rows], tuple(header[i] for i in kept))
        if width is None or max(map(len, lines)) <= width:
            break
    return lines


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> list[str]:
    """Lines of a plain table, columns padded to their widest cell. Cells may hold any text."""
    cells = [header, *(tuple(map(clean_line, row)) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
