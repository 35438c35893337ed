"""One report, five forms. Everything but `table` and `short` is for machines and knows neither width nor colour."""

import os
import shutil
import sys
from typing import Literal, TextIO, get_args

import msgspec

from pdctl.redact import clean_json
from pdctl.report.model import Report

Format = Literal["table", "short", "json", "junit", "sarif"]
FORMATS: tuple[Format, ...] = get_args(Format)

NARROWEST = 40
PIPED = 120


def render(report: Report, fmt: Format, *, width: int = PIPED, colour: bool = False) -> str:
    """The report as text that ends in a newline. `width` is that of the terminal, in columns."""
    match fmt:
        case "table":
            from pdctl.report.table import table

            return table(report, max(width, NARROWEST), colour)
        case "short":
            from pdctl.report.table import short

            return short(report, max(width, NARROWEST), colour)
        case "json":
            return clean_json(msgspec.json.format(msgspec.json.encode(_document(report)), indent=1).decode()) + "\n"
        case "junit":
            from pdctl.report.junit import junit

            return junit(report)
        case "sarif":
            from pdctl.report.sarif import sarif

            return sarif(report)


def emit(report: Report, fmt: Format, stream: TextIO | None = None) -> None:
    """Write the report to standard output, as wide as the terminal, coloured only on one."""
    out = stream or sys.stdout
    terminal = out.isatty()
    width = shutil.get_terminal_size((80 if terminal else PIPED, 24)).columns
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = render(report, fmt, width=width, colour=colour)
    encoding = out.encoding or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))


def _document(report: Report) -> dict[str, object]:
    """The schema first, as people expect of a document."""
    fields = msgspec.to_builtins(report)
    return {"schema": fields.pop("schema"), **fields}
