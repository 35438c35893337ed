"""`pdctl ps`: every fleet of the state folder, also those of which nothing can be read."""

import json
import time
from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.launch.state import FleetFolder, FleetState, UnitEntry, state_root


def write(name: str, phase: str, since: float) -> None:
    folder = FleetFolder(name)
    folder.units.mkdir(parents=True)
    units = (UnitEntry("decode-0", "decode", "127.0.0.1", {"http": 1}),)
    folder.write(
        FleetState(
            fleet=name,
            file="/f.yaml",
            digest="",
            pdctl="0",
            phase=phase,
            since=since,
            url="http://127.0.0.1:9",
            units=units,
        )
    )


def test_all_fleets_are_listed_and_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    write("one", "up", time.time() - 3 * 3600)
    write("two", "down", time.time() - 70)
    (state_root() / "odd").mkdir()
    (state_root() / "odd/fleet.json").write_text("{")
    (state_root() / "loop").symlink_to("loop")
    assert app.main(["ps"]) == 3
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["fleet", "phase", "ready", "since", "url"],
        ["loop", "unreadable", "–", "–", "–"],
        ["odd", "unreadable", "–", "–", "–"],
        ["one", "up", "0/1", "3", "h", "http://127.0.0.1:9"],
        ["two", "down", "0/1", "1", "min", "http://127.0.0.1:9"],
    ]
    assert "odd: " in captured.err
    assert "the state file is damaged" in captured.err
    assert "`pdctl down odd`" in captured.err
    assert app.main(["ps", "-o", "json"]) == 3
    listed = {one["fleet"]: one for one in json.loads(capsys.readouterr().out)["fleets"]}
    assert list(listed) == ["loop", "odd", "one", "two"]
    assert set(listed["one"]) == {"fleet", "phase", "units", "ok", "busy", "url", "since", "problem"}
    assert (listed["one"]["units"], listed["one"]["ok"]) == ({"ready": 0, "total": 1}, False)
    assert "damaged" in listed["odd"]["problem"]


def test_no_fleet_is_said_and_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["ps"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, "no fleet is known in " in captured.err) == ("", True)
    assert app.main(["ps", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"fleets": []}


def test_a_state_folder_that_is_none_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    state_root().parent.mkdir(parents=True)
    state_root().write_text("")
    assert app.main(["ps"]) == 1
    assert "error PD0042" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fleet.yaml", "pdctl.yaml"])
def test_the_file_of_this_folder_is_taken_and_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(["init", name, "--name", "here"]) == 0
    capsys.readouterr()
    for words in (["check"], ["up", "--plan"], ["status"], ["down"]):
        assert app.main(words) == (3 if words == ["status"] else 0)
        captured = capsys.readouterr()
        assert f"{name} of this folder:\n" in captured.err
        assert name not in captured.out.splitlines()[0]
    assert app.main(["restart"]) == 3
    assert "here is not up" in capsys.readouterr().err


@pytest.mark.code("PD0024")
@pytest.mark.parametrize("command", ["up", "down", "status", "logs", "check", "restart"])
def test_none_and_two_are_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main([command]) == 2
    assert "error PD0024 FLEET  no fleet is given, and this folder has no fleet.yaml or pdctl.yaml\n" in (
        err := capsys.readouterr().err
    )
    assert "`pdctl init`" in err
    for name in ("fleet.yaml", "pdctl.yaml"):
        Path(name).write_text("")
    assert app.main([command]) == 2
    assert "fleet.yaml and pdctl.yaml are both here\n  give one of them" in capsys.readouterr().err


def test_check_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess
    import sys

    def check(text: str, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "pdctl", "check", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    text = subprocess.run(
        [sys.executable, "-m", "pdctl", "init", "-"], capture_output=True, text=True, check=True
    ).stdout
    assert check(text, "-").returncode == 0
    wrong = check(text.replace("page_size: 16", "page_size: 32", 1), "-", "-o", "json")
    assert wrong.returncode == 3
    assert '"stdin:' in wrong.stdout, "a finding says the line"
    broken = check(text.replace("engine:", "engin:"), "-")
    assert broken.returncode == 2
    assert "stdin:" in broken.stderr
    assert "error PD0001 -  standard input can be read once" in check(text, "-", "-").stderr


@pytest.mark.parametrize("code", ["3006", "PD3006", "pd3006"])
def test_a_code_is_found_without_its_letters(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["explain", code]) == 0
    assert capsys.readouterr().out.startswith("PD3006 ")
