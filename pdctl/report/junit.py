"""The report as JUnit XML: one test case a pair, one a finding that concerns no pair, one a rule held or skipped."""

import re
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from pdctl import __version__
from pdctl.redact import clean
from pdctl.report.model import Report, ReportedFinding

#: Characters that no XML 1.0 document may hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """Errors are failures; warnings and information stand in `system-out` of a case that passes."""
    suite = ET.Element("testsuite", name=f"pdctl {report.command}")
    _properties(suite, {"schema": report.schema, "pdctl.version": __version__, "ok": str(report.ok).lower()})
    for one in report.judged_for:
        ET.SubElement(suite[0], "property", name="judged_for", value=_clean(f"{one.name} ({one.why})"))
    about: dict[str, list[ReportedFinding]] = {}
    for finding in report.findings:
        for subject in finding.subjects:
            about.setdefault(subject, []).append(finding)
    for pair in report.pairs:
        concerned = [f for subject in (pair.subject, pair.prefill, pair.decode) for f in about.get(subject, [])]
        case = _case(suite, "pair", pair.subject)
        _properties(case, {"verdict": pair.verdict, "codes": ",".join(pair.codes)})
        if pair.verdict in ("refused", "unknown"):
            _fail(case, pair.verdict, [finding for finding in concerned if finding.severity == "error"])
        _say(case, [finding for finding in concerned if finding.severity != "error"])
    paired = {subject for pair in report.pairs for subject in (pair.subject, pair.prefill, pair.decode)}
    for finding in report.findings:
        if not paired & set(finding.subjects):
            case = _case(suite, finding.code, finding.subject)
            _properties(case, {"code": finding.code, "severity": finding.severity, "docs": finding.docs})
            if finding.severity == "error":
                _fail(case, "failed", [finding])
            else:
                _say(case, [finding])
    if not report.pairs:
        for held in report.held:
            _case(suite, held.rule, held.subject)
    for skip in report.skipped:
        ET.SubElement(_case(suite, skip.rule, skip.subject), "skipped", message=_clean(skip.reason))
    cases = suite.findall("testcase")
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": f"{report.seconds or 0:.3f}",
    }
    for name, value in counts.items():
        suite.set(name, value)
    root = ET.Element("testsuites", counts)
    root.append(suite)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, kind: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=f"pdctl.{kind}", name=_clean(name), time="0")


def _properties(parent: ET.Element, values: dict[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=_clean(value))


def _fail(case: ET.Element, verdict: str, findings: list[ReportedFinding]) -> None:
    message = "; ".join(f"{finding.code} {finding.message}" for finding in findings) or verdict
    codes = ",".join(finding.code for finding in findings) or verdict
    failure = ET.SubElement(case, "failure", message=_clean(message), type=codes)
    failure.text = _clean(_text(findings) or "something needed could not be read")


def _say(case: ET.Element, findings: list[ReportedFinding]) -> None:
    if findings:
        ET.SubElement(case, "system-out").text = _clean(_text(findings))


def _text(findings: Iterable[ReportedFinding]) -> str:
    blocks = []
    for finding in findings:
        mark = " (ignored)" if finding.ignored else ""
        head = f"{finding.severity} {finding.code}{mark}  {finding.subject}  {finding.message}"
        evidence = [f"  {e.source}  {e.text}" for e in finding.evidence]
        blocks.append("\n".join([head, *evidence, f"  {finding.why}", f"  {finding.action}", f"  {finding.docs}"]))
    return "\n\n".join(blocks)


def _clean(text: str) -> str:
    return clean(_FORBIDDEN.sub("�", text), None)
