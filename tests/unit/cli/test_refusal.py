"""Where a document was asked for, unusable input is one: a pipeline shows it as it would show a finding."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pdctl.cli import app
from pdctl.cli.refusal import asked_form
from pdctl.launch.state import FleetFolder, FleetState

TYPO = (
    "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
    "prefill: {page_sise: 4}\ndecode: {attn_tp: x}\n"
)


@pytest.fixture
def typo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("typo.yaml").write_text(TYPO)
    return "typo.yaml"


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = app.main(argv)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("command", [["check"], ["up"], ["plan"], ["preflight"], ["layout", "--role", "prefill"]])
def test_json_is_a_report_with_file_and_line(command: list[str], typo: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = said(capsys, *command, typo, "-o", "json")
    document = json.loads(out)
    assert status == 2
    assert (document["schema"], document["command"], document["ok"]) == ("pdctl.report/v1", command[0], False)
    assert document["summary"]["error"] == len(document["findings"]) == 2
    first = document["findings"][0]
    assert (first["code"], first["subject"]) == ("PD0003", "typo.yaml:5")
    assert first["message"] == "prefill.page_sise: unknown key"
    assert first["action"] == 'did you mean "page_size"?'
    assert [one["source"] for one in first["evidence"]] == ["typo.yaml:5"]
    assert "error PD0003 typo.yaml:5" in err


def test_sarif_has_the_place(typo: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`pdctl check fleet.yaml -o sarif > pdctl.sarif` left a file of no bytes."""
    status, out, _ = said(capsys, "check", typo, "-o", "sarif")
    (run,) = json.loads(out)["runs"]
    assert status == 2
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "typo.yaml"}, "region": {"startLine": 5}}
    assert [one["ruleId"] for one in run["results"]] == ["PD0003", "PD0004"]
    assert run["tool"]["driver"]["rules"][0]["id"] == "PD0003"


def test_junit_has_a_failure(typo: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "check", typo, "-o", "junit")
    suites = ET.fromstring(out)
    assert status == 2
    assert suites.get("failures") == "2"
    (first, _) = suites.iter("failure")
    assert first.get("type") == "PD0003"
    assert "typo.yaml:5" in (first.text or "")


@pytest.mark.parametrize(
    ("argv", "status", "code"),
    [
        (["status", "nope", "-o", "json"], 3, "PD3013"),
        (["down", "nope", "--output=json"], 3, "PD3013"),
        (["check", "nope.yaml", "-ojson"], 2, "PD0002"),
        (["check", "x", "--platfrom", "npu", "-o", "json"], 2, "PD0001"),
        (["explain", "PD9999", "-o", "json"], 2, "PD0001"),
        (["discover", "--root", "/nonexistent", "-o", "json"], 2, "PD0001"),
        (["preflight", "--probe", "-o", "json"], 2, "PD0001"),
    ],
)
def test_whatever_goes_wrong_is_a_document(
    argv: list[str], status: int, code: str, typo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, out, err = said(capsys, *argv)
    assert got == status
    assert [one["code"] for one in json.loads(out)["findings"]] == [code]
    assert f"error {code}" in err


@pytest.mark.parametrize("form", ["table", "short"])
def test_where_no_document_was_asked_for_standard_output_stays_empty(
    form: str, typo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, "check", typo, "-o", form)[:2] == (2, "")


@pytest.mark.parametrize(
    ("argv", "form"),
    [
        (["-o", "json"], "json"),
        (["-ojunit", "x"], "junit"),
        (["--output", "sarif"], "sarif"),
        (["--output=json"], "json"),
        (["-o", "json", "-o", "table"], None),
        (["-o", "jsn"], None),
        (["--", "-o", "json"], None),
        (["-o"], None),
        ([], None),
    ],
)
def test_the_form_is_found_without_the_option_parser(argv: list[str], form: str | None) -> None:
    assert asked_form(argv) == form


def test_a_fault_of_a_thousand_keys_is_told_in_a_page(typo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(typo).write_text(TYPO + "".join(f"k{i}: 1\n" for i in range(1000)))
    status, out, err = said(capsys, "check", typo, "-o", "json")
    assert status == 2
    assert len(json.loads(out)["findings"]) == 21
    assert "and 982 more like these" in err


def test_a_document_tells_no_secret(typo: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(typo).write_text(TYPO.replace("{page_sise: 4}", "{env: {HF_TOKEN: [S3]}, args: '--api-key=S3'}"))
    status, out, err = said(capsys, "check", typo, "-o", "json")
    assert status == 2
    assert "prefill.env.HF_TOKEN" in err
    assert "S3" not in out + err


@pytest.mark.parametrize("what", ["folder", "file", "fifo"])
@pytest.mark.parametrize("command", ["status", "logs", "down"])
def test_nothing_in_the_current_folder_hides_a_fleet_that_is_known(
    what: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`mkdir two`, and `pdctl down two` could not reach the fleet."""
    import os

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = FleetFolder("two")
    folder.path.mkdir(parents=True)
    folder.write(FleetState(fleet="two", file="", digest="", pdctl="", phase="down", since=0))
    {"folder": os.mkdir, "fifo": os.mkfifo, "file": lambda name: Path(name).write_text("x")}[what]("two")
    status, _, err = said(capsys, command, "two")
    assert status == (3 if command == "status" else 0)
    assert "error" not in err


def test_a_folder_is_no_fleet_and_a_long_name_is_told_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("two").mkdir()
    for name in ("two", "x" * 5000, "a\nb"):
        status, _, err = said(capsys, "status", name)
        assert status == 3
        assert err.startswith("error PD3013  no fleet of the name ")
        assert len(err) < 1300
