"""The report as SARIF 2.1.0, for code-scanning views: a result a finding, at the lines that its evidence names."""

import hashlib
import re
from typing import Any

import msgspec

from pdctl import __version__
from pdctl.catalog import lookup
from pdctl.redact import clean_json
from pdctl.report.model import Report, ReportedFinding
from pdctl_transfer.rules.outcome import Evidence, Severity

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_PLACE = re.compile(r"(?P<file>[^\s:][^:]*\.(?:ya?ml|json|log|txt|sh|env|service|conf))(?::(?P<line>[1-9]\d*))?")


def sarif(report: Report) -> str:
    """One run. A finding without a file still gets a logical location, its subject."""
    codes = sorted({finding.code for finding in report.findings})
    driver = {
        "name": "pdctl",
        "version": __version__,
        "semanticVersion": __version__,
        "informationUri": "https://pdctl.readthedocs.io",
        "rules": [_rule(code) for code in codes],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, codes.index(finding.code)) for finding in report.findings],
        "invocations": [{"executionSuccessful": True}],
        "properties": {
            "command": report.command,
            "ok": report.ok,
            "judged_for": [f"{one.name} ({one.why})" for one in report.judged_for],
        },
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return clean_json(msgspec.json.format(msgspec.json.encode(document), indent=1).decode()) + "\n"


def _rule(code: str) -> dict[str, Any]:
    entry = lookup(code)
    return {
        "id": code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.why},
        "help": {"text": entry.action},
        "helpUri": entry.docs,
        "defaultConfiguration": {"level": _LEVELS[entry.severity]},
    }


def _result(finding: ReportedFinding, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.subject}: {finding.message}. {finding.why} {finding.action}"},
        "locations": _locations(finding),
        "partialFingerprints": {"pdctl/v1": _fingerprint(finding)},
    }
    if finding.ignored:
        result["suppressions"] = [{"kind": "external", "justification": f"--ignore {finding.code}"}]
    return result


def _locations(finding: ReportedFinding) -> list[dict[str, Any]]:
    logical = [{"fullyQualifiedName": finding.subject}]
    places = [place for place in map(_place, finding.evidence) if place is not None]
    return [{"physicalLocation": place, "logicalLocations": logical} for place in places] or [
        {"logicalLocations": logical}
    ]


def _place(evidence: Evidence) -> dict[str, Any] | None:
    match = _PLACE.fullmatch(evidence.source)
    if match is None:
        return None
    place: dict[str, Any] = {"artifactLocation": {"uri": _uri(match["file"])}}
    if match["line"]:
        snippet = {"snippet": {"text": evidence.text}} if evidence.text else {}
        place["region"] = {"startLine": int(match["line"]), **snippet}
    return place


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path.removeprefix("./"))


def _fingerprint(finding: ReportedFinding) -> str:
    """Stable while the culprit is the same: not the lines, which move when a file is edited."""
    files = [re.sub(r":\d+$", "", evidence.source) for evidence in finding.evidence]
    return hashlib.sha256("\0".join([finding.code, finding.subject, *files]).encode()).hexdigest()[:32]
