"""Where output goes: results to standard output, everything else to standard error; colour only on a terminal."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO

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


def note(text: str) -> None:
    """One line of progress. A reader that has gone misses it; what is under way goes on."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        pass


def result(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(text + "\n")


def result_json(document: Any) -> None:
    """A result for machines: keys in the order given, one document."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def table(rows: Sequence[tuple[str, ...]], header: tuple[str, ...]) -> list[str]:
    """Lines of a plain table, columns padded to their widest cell."""
    cells = [header, *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
