"""`pdctl explain`: what a code means and what to do, offline, from the one catalog."""

import shutil
import sys
import textwrap
from typing import Annotated, Literal

import typer

from pdctl.catalog import SECTIONS, CatalogEntry, entries, lookup, nearest
from pdctl.cli.output import paint, result, result_json
from pdctl.errors import InputError


def command(
    code: Annotated[
        str | None, typer.Argument(help="A code such as PD1001, or 1001; none: the list of all.", metavar="CODE")
    ] = None,
    output: Annotated[Literal["table", "json"], typer.Option("-o", "--output", help="table or json.")] = "table",
) -> int:
    """Explain a code: what it means, why it matters, what to do. Without a code, list them all."""
    if code is None:
        _list(output)
        return 0
    try:
        entry = lookup(_whole(code.strip()))
    except KeyError:
        raise InputError(f'no code "{code}"', where="CODE", hint=_suggest(code)) from None
    if output == "json":
        result_json(_document(entry))
    else:
        _print(entry)
    return 0


def _whole(code: str) -> str:
    """`3006` and `pd3006` mean PD3006."""
    return f"PD{code:0>4}" if code.isascii() and code.isdigit() else code


def _list(output: str) -> None:
    if output == "json":
        result_json([_document(entry) for entry in entries().values()])
        return
    for section in SECTIONS.values():
        listed = [entry for entry in entries().values() if entry.section == section]
        if not listed:
            continue
        result(paint(section, "bold", sys.stdout))
        for entry in sorted(listed, key=lambda entry: entry.code):
            result(f"  {entry.code}  {entry.severity:<7}  {entry.title}{' (retired)' if entry.retired else ''}")


def _print(entry: CatalogEntry) -> None:
    width = max(40, min(shutil.get_terminal_size((100, 24)).columns, 100))
    result(f"{paint(entry.code, 'bold', sys.stdout)}  {entry.severity}  {entry.title}")
    if entry.retired:
        result("Retired: this version no longer reports it.")
    says = "" if entry.message == "{what}" else entry.spoken(entry.message)
    texts = {"Says": says, "Why": entry.spoken(entry.why), "Do": entry.spoken(entry.action), "Seen": entry.seen or ""}
    for head, text in texts.items():
        if text:
            lines = textwrap.wrap(text, width - 6, break_long_words=False)
            result("\n" + textwrap.indent("\n".join(lines), " " * 6).replace(" " * len(head), head, 1))
    result(f"\n{entry.docs}")


def _document(entry: CatalogEntry) -> dict[str, object]:
    import msgspec

    return {**msgspec.to_builtins(entry), "section": entry.section, "docs": entry.docs}


def _suggest(code: str) -> str:
    near = [f"{name}  {lookup(name).title}" for name in nearest(code)]
    return "\n".join(["did you mean", *(f"  {line}" for line in near)]) if near else "`pdctl explain` lists all codes"
