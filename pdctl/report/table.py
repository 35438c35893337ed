"""The report for people: a section a subject, a glyph a line, evidence with its origin, why, and what to do."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from pdctl.catalog import SECTIONS, section_of
from pdctl.redact import clean_line
from pdctl.report.build import spans
from pdctl.report.model import PairVerdict, Report, ReportedFinding

_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_MARKS = {
    "fits": ("✓", "green"),
    "fits with warnings": ("✓", "yellow"),
    "refused": ("✗", "red"),
    "unknown": ("?", "yellow"),
    "error": ("✗", "red"),
    "warning": ("!", "yellow"),
    "info": ("i", "cyan"),
    "held": ("✓", "green"),
    "skipped": ("–", "dim"),
}
#: The section in which a command's own subject stands.
_SECTION = {"check": "layout", "preflight": "hosts and fabric", "diagnose": "transfer", "verify": "accuracy"}


class _Pen:
    """Writes lines within a width, with or without colour."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = width
        self.colour = colour

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.colour else text

    def line(self, mark: str, label: str, text: str) -> Iterator[str]:
        """`  ✓ label   text`, wrapped under the label where it is too long."""
        glyph, style = _MARKS[mark]
        label, text = printable(label), printable(text)
        head = f"  {glyph} {label}"
        painted = f"  {self.paint(glyph, style)} {label}"
        if not text:
            yield painted
        elif len(head) + 3 + len(text) <= self.width:
            yield f"{painted}   {text}"
        else:
            first, *rest = textwrap.wrap(head, self.width, subsequent_indent=" " * 4) or [head]
            yield first.replace(glyph, self.paint(glyph, style), 1)
            yield from rest
            yield from self.wrapped(text, 6)

    def wrapped(self, text: str, indent: int) -> list[str]:
        pad = " " * indent
        return textwrap.wrap(
            printable(text), self.width, initial_indent=pad, subsequent_indent=pad, break_long_words=False
        )


def printable(text: str) -> str:
    """On one line, and nothing in it that a terminal would obey: names come from files."""
    return clean_line(text, None)


def table(report: Report, width: int, colour: bool) -> str:
    """Everything, in sections; the summary last."""
    pen = _Pen(width, colour)
    own = _SECTION.get(report.command, report.command)
    lines: list[str] = []
    for section in dict.fromkeys([*SECTIONS.values(), own, "other"]):
        block = list(_section(pen, report, section, section == own))
        if block:
            lines += [pen.paint(section, "bold"), *block]
    for note in report.notes:
        lines += pen.wrapped(f"note: {note}", 0)
    return "\n".join([*lines, *_judged_for(pen, report), *pen.wrapped(_summary(report), 0)]) + "\n"


def _judged_for(pen: _Pen, report: Report) -> Iterator[str]:
    """A line a release; which pools it holds for, where there are several."""
    for one in report.judged_for:
        pools = f" for {spans(one.pools)}" if len(report.judged_for) > 1 else ""
        yield from pen.wrapped(f"judged for {one.name}{pools} ({one.why})", 0)


def short(report: Report, width: int, colour: bool) -> str:
    """A line a finding that is not only information, and the summary."""
    pen = _Pen(width, colour)
    lines: list[str] = []
    for finding in report.findings:
        if finding.severity != "info" or finding.ignored:
            lines += pen.line(finding.severity, finding.subject, _headline(finding))
    for verdict, pairs in _by_verdict(report.pairs):
        if verdict.verdict == "unknown":
            lines += pen.line("unknown", _pairs_label(pairs), "unknown: something needed could not be read")
    return "\n".join([*lines, *_judged_for(pen, report), *pen.wrapped(_summary(report), 0)]) + "\n"


def _section(pen: _Pen, report: Report, section: str, own: bool) -> Iterator[str]:
    if own:
        for verdict, pairs in _by_verdict(report.pairs):
            if verdict.verdict != "refused":
                yield from pen.line(verdict.verdict, _pairs_label(pairs), verdict.saw)
        paired = {pair.subject for pair in report.pairs}
        if not paired:
            for held in report.held:
                yield from pen.line("held", held.subject, f"{held.rule}: {held.saw}")
    for finding in report.findings:
        if section_of(finding.code) == section:
            yield from _finding(pen, finding)
    if own:
        for skip in report.skipped:
            yield from pen.line("skipped", skip.subject, f"{skip.rule}: {skip.reason}")


def _finding(pen: _Pen, finding: ReportedFinding) -> Iterator[str]:
    yield from pen.line(finding.severity, finding.subject, _headline(finding))
    column = min(max((len(e.source) for e in finding.evidence), default=0), pen.width // 2)
    for evidence in finding.evidence:
        whole = printable(f"      {evidence.source:<{column}}   {evidence.text}")
        yield from [whole] if len(whole) <= pen.width else pen.wrapped(f"{evidence.source}   {evidence.text}", 6)
    yield from pen.wrapped(finding.why, 6)
    action = pen.wrapped(finding.action, 6)
    explain = f"pdctl explain {finding.code}"
    room = pen.width - len(action[-1]) - len(explain) if action else 0
    yield from action[:-1]
    if room >= 3:
        yield action[-1] + " " * room + pen.paint(explain, "dim")
    else:
        yield from [*action[-1:], " " * 6 + pen.paint(explain, "dim")]


def _headline(finding: ReportedFinding) -> str:
    return f"{finding.code}  {finding.message}{' (ignored)' if finding.ignored else ''}"


def _by_verdict(pairs: Iterable[PairVerdict]) -> Iterator[tuple[PairVerdict, Sequence[PairVerdict]]]:
    """Neighbours with one verdict and one reason: a thousand equal pairs are one line."""
    for _, run in groupby(pairs, key=lambda pair: (pair.verdict, pair.codes, pair.saw)):
        group = list(run)
        yield group[0], group


def _pairs_label(pairs: Sequence[PairVerdict]) -> str:
    prefills = list(dict.fromkeys(pair.prefill for pair in pairs))
    decodes = list(dict.fromkeys(pair.decode for pair in pairs))
    if len(prefills) * len(decodes) != len(pairs):
        return ", ".join(pair.subject for pair in pairs)
    return f"{spans(prefills)} → {spans(decodes)}"


def _summary(report: Report) -> str:
    counts = report.summary
    parts = []
    if report.pairs:
        refused = sum(pair.verdict == "refused" for pair in report.pairs)
        parts.append(_count(len(report.pairs), "pair") + (f", {refused} refused" if refused else ""))
    parts.append(_count(counts.error, "error"))
    if counts.warning:
        parts.append(_count(counts.warning, "warning"))
    parts += [f"{counts.held} held", f"{counts.skipped} skipped"]
    if counts.ignored:
        parts.append(f"{counts.ignored} ignored")
    took = "" if report.seconds is None else f" in {report.seconds:.2f} s"
    return ", ".join(parts) + took


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
