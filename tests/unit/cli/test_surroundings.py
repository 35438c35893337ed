"""Paths that no file system takes, and variables that make no sense: words, and whose fault it is."""

from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.errors import HostError
from pdctl.hosts.exec import SshHost
from tests.unit.cli.unusable import FLEET

LONG = "x" * 5000
FLEETS = {
    "model": FLEET.replace("builtin:tiny-hybrid", LONG),
    "environment": FLEET.replace("prefill: {", f"prefill: {{environment: /{LONG}, "),
    "draft": FLEET.replace("reference", "sglang").replace(
        "prefill: {", f"prefill: {{speculative: {{algorithm: EAGLE, draft_model_path: {LONG}}}, "
    ),
}


@pytest.mark.parametrize("words", [["check"], ["layout", "--role", "prefill"], ["plan"], ["preflight"], ["up"]])
@pytest.mark.parametrize("kind", FLEETS)
def test_an_over_long_path_in_a_fleet_file_is_unusable_input(
    kind: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "f.yaml").write_text(FLEETS[kind])
    status = app.main([words[0], str(tmp_path / "f.yaml"), *words[1:]])
    err = capsys.readouterr().err
    assert status in (0, 2, 3), err
    assert "PD0000" not in err
    assert "PD0044" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["discover", "--root", LONG],
        ["discover", "--root", "/dev/null"],
        ["preflight", "--environment", LONG],
        ["preflight", "--environment", "/dev/null"],
        ["init", "-", "--model", LONG],
        ["check", "examples/tiny-hybrid.yaml", "--model", LONG],
        ["check", LONG],
    ],
)
def test_an_over_long_path_in_a_command_line_is_unusable_input(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(words) == 2
    assert capsys.readouterr().err.startswith("error PD")


def test_a_command_for_ssh_that_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_SSH", "ssh -F 'lab")
    with pytest.raises(HostError, match="PDCTL_SSH is no command: no closing quotation"):
        SshHost("h")


@pytest.mark.parametrize("columns", ["", "0", "-3", "x", "9" * 5000, "1"])
def test_columns_of_any_kind_break_no_report(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert app.main(["check", "examples/tiny-hybrid.yaml"]) == 0
    assert "1 pair, 0 errors" in capsys.readouterr().out
