"""The five forms. Goldens are rewritten with `PDCTL_GOLDEN=write pytest tests/unit/report`, then read by a person."""

import json
import os
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pdctl import __version__
from pdctl.catalog import lookup
from pdctl.report import FORMATS, Format, Report, make_report, render
from pdctl_transfer.rules.outcome import Evidence, Finding

GOLDEN = Path(__file__).parent / "golden"


def _golden(name: str, text: str) -> None:
    path = GOLDEN / name
    text = text.replace(f'"{__version__}"', '"VERSION"').replace(f"/v{__version__}/", "/vVERSION/")
    if os.environ.get("PDCTL_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("fmt", FORMATS)
def test_golden(report: Report, fmt: Format) -> None:
    """Scripts and eyes rely on these: a change of form is a decision."""
    _golden(f"{fmt}.txt", render(report, fmt))


@pytest.mark.parametrize("fmt", ["table", "short"])
def test_golden_narrow_and_coloured(report: Report, fmt: Format) -> None:
    """Fifty columns, as beside an editor."""
    _golden(f"{fmt}-narrow.txt", render(report, fmt, width=50, colour=True))


@pytest.mark.parametrize("width", [1, 20, 40, 57, 80, 200])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    """Words are never cut, so below 40 columns it stops trying."""
    text = render(report, "table", width=width)
    assert max(map(len, text.splitlines())) <= max(width, 40)


def test_no_control_characters_without_colour(report: Report) -> None:
    """Logs of a pipeline stay readable."""
    assert not any("\x1b" in render(report, fmt) for fmt in FORMATS)


@pytest.mark.parametrize("fmt", FORMATS)
def test_control_characters_of_a_name_do_not_reach_the_terminal(fmt: Format) -> None:
    """A model may call itself anything; XML would not even parse."""
    name = "a\x00b\x1b[31m<&]]>\nc"
    finding = Finding("PD1002", name, (Evidence(name, name),), {"prefill": name, "decode": "auto"})
    text = render(make_report("check", [finding]), fmt)
    assert not set(text) & {"\x00", "\x1b"}
    if fmt == "junit":
        ET.fromstring(text)


def test_json_has_the_fields_of_the_contract(report: Report) -> None:
    """Fields may be added, never changed."""
    document = json.loads(render(report, "json"))
    assert document["schema"] == "pdctl.report/v1"
    assert (document["command"], document["ok"]) == ("check", False)
    assert {"error", "warning", "info", "skipped", "ignored"} <= set(document["summary"])
    assert {"prefill", "decode", "verdict", "codes"} <= set(document["pairs"][0])
    wanted = {"code", "severity", "title", "subject", "ignored", "message", "evidence", "action", "docs"}
    assert wanted <= set(document["findings"][0])
    [pages] = [finding for finding in document["findings"] if finding["code"] == "PD1001"]
    assert pages["evidence"][0] == {"source": "fleet.yaml:8", "text": "page_size: 64"}
    assert document["skipped"] == [{"rule": "live", "subject": "mute-0", "reason": "no answer on port 1"}]


def test_junit_counts_what_it_holds(report: Report) -> None:
    """CI systems trust the counts; every case has a name; refused and unknown pairs are failures."""
    root = ET.fromstring(render(report, "junit"))
    [suite] = root.findall("testsuite")
    cases = suite.findall("testcase")
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert suite.get("tests") == str(len(cases))
    assert suite.get("failures") == str(len(failed)) == "7"
    assert "prefill-1 → small-0" in failed
    assert "prefill-0 → mute-0" in failed
    codes = {p.get("value") for p in root.iter("property") if p.get("name") == "codes"}
    assert "PD1001" in codes


def test_junit_survives_control_characters() -> None:
    """A log line in the evidence may hold what no XML document can."""
    finding = Finding("PD1014", "a\x00b", (Evidence("x\x1b[0m", "\x08"),), {"what": "\ufffe <&>"})
    ET.fromstring(render(make_report("check", [finding]), "junit"))


def test_sarif_points_at_lines(report: Report) -> None:
    """Code-scanning views need file, line, a known rule and a level; an ignored result is suppressed, not absent."""
    document = json.loads(render(report, "sarif"))
    [run] = document["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    for result in run["results"]:
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        assert re.fullmatch("[0-9a-f]{32}", result["partialFingerprints"]["pdctl/v1"])
    by_rule = {result["ruleId"]: result for result in run["results"]}
    place = by_rule["PD1001"]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "fleet.yaml"
    assert place["region"]["startLine"] == 8
    assert by_rule["PD1014"]["suppressions"][0]["kind"] == "external"
    assert "physicalLocation" not in by_rule["PD1015"]["locations"][0]


def test_every_form_of_an_empty_report() -> None:
    """Nothing found is still a document."""
    for fmt in FORMATS:
        assert render(make_report("check"), fmt).endswith("\n")


def test_words_come_from_the_catalog(report: Report) -> None:
    """No renderer has words of its own."""
    [finding] = [finding for finding in report.findings if finding.code == "PD1001"]
    entry = lookup("PD1001")
    assert (finding.title, finding.why, finding.docs) == (entry.title, entry.why, entry.docs)
    assert finding.message == "page size 64 on prefill, 32 on decode"
