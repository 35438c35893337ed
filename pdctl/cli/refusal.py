"""Faults as a report on standard output, where a document was asked for.

`-o json`, `junit` and `sarif` promise one. A pipeline that uploads it must see the misspelt key of a fleet file as it
would see two layouts that do not fit.
"""

from collections.abc import Sequence

from pdctl.catalog import lookup
from pdctl.cli.fault import Fault
from pdctl.redact import clean, hide
from pdctl.report import Report, ReportedFinding, Summary, emit
from pdctl.report.render import Format
from pdctl_transfer.rules.outcome import Evidence

_DOCUMENTS: tuple[Format, ...] = ("json", "junit", "sarif")


def asked_form(argv: Sequence[str]) -> Format | None:
    """The document that a command line asks for. Looked up without the option parser: that may be what failed."""
    found: str | None = None
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word in ("-o", "--output"):
            found = following
        elif word.startswith("--output="):
            found = word.partition("=")[2]
        elif word.startswith("-o") and not word.startswith("--"):
            found = word[2:].removeprefix("=")
    return next((form for form in _DOCUMENTS if form == found), None)


def print_document(command: str, faults: Sequence[Fault], form: Format) -> None:
    """The faults as `pdctl.report/v1`. Raises OutputError."""
    findings = tuple(_finding(command, fault) for fault in faults)
    emit(Report(command, ok=False, summary=Summary(error=len(findings)), findings=findings), form)


def _finding(command: str, fault: Fault) -> ReportedFinding:
    entry = lookup(fault.code)
    subject = hide(fault.where or f"pdctl {command}")
    return ReportedFinding(
        code=fault.code,
        severity="error",
        title=entry.title,
        subject=subject,
        ignored=False,
        message=clean(hide(fault.message)),
        evidence=(Evidence(subject, ""),) if fault.where else (),
        why=entry.spoken(entry.why),
        action=clean(hide(fault.hint)) if fault.hint else entry.spoken(entry.action),
        docs=entry.docs,
        subjects=(subject,),
    )
