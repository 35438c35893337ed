"""Commands on a fleet that somebody else started, as their user."""

import json
import os
from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl.launch.state import FleetFolder, FleetState, state_root

FLEET = """\
schema: pdctl.fleet/v1
name: prod
model: {path: builtin:tiny-llama}
engine: sglang
launcher: {kind: external}
prefill: {urls: [http://127.0.0.1:1]}
decode: {urls: [http://127.0.0.1:2]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "prod.yaml"
    path.write_text(FLEET)
    return str(path)


@pytest.mark.code("PD3119")
@pytest.mark.parametrize("command", [("up",), ("up", "--plan"), ("restart",), ("restart", "-q"), ("down",)])
def test_what_would_start_or_end_something_refuses_before_anything_else(
    file: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], file, *command[1:]]) == 2
    said = capsys.readouterr()
    assert (said.out, "PD3119" in said.err, "prod is an external fleet" in said.err) == ("", True, True)
    assert not (state_root() / "prod").exists()


def test_a_fleet_of_the_same_name_that_pdctl_started_is_left_alone(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`down FILE` must not end the other one, and says how to."""
    folder = FleetFolder("prod")
    with folder.lock("up"):
        state = FleetState(
            fleet="prod", file="/elsewhere.yaml", digest="", pdctl="0", phase="up", since=0.0, url="http://127.0.0.1:1"
        )
        folder.write(state)
    assert main(["down", file]) == 2
    assert "`pdctl down prod` ends that one" in capsys.readouterr().err
    assert folder.read() == state


def test_a_name_means_ours_and_a_file_what_it_describes(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A local fleet with state and an external file of one name stay two."""
    folder = FleetFolder("prod")
    with folder.lock("up"):
        folder.write(FleetState(fleet="prod", file="/elsewhere.yaml", digest="", pdctl="0", phase="down", since=0.0))
    assert main(["status", "prod", "-o", "json"]) == 3
    ours = json.loads(capsys.readouterr().out)
    assert main(["status", file, "-o", "json"]) == 3
    theirs = json.loads(capsys.readouterr().out)
    assert (ours["launcher"], ours["phase"], ours["units"]) == ("local", "down", [])
    assert (theirs["launcher"], theirs["phase"], len(theirs["units"])) == ("external", "external", 2)


def test_status_keeps_its_form_and_writes_nothing(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What nobody here knows of a unit is null."""
    assert main(["status", file, "-o", "json"]) == 3
    document = json.loads(capsys.readouterr().out)
    first = document["units"][0]
    assert {name: first[name] for name in ("name", "role", "pid", "port", "state", "restarts")} == {
        "name": "prefill-0",
        "role": "prefill",
        "pid": None,
        "port": 1,
        "state": "unreachable",
        "restarts": None,
    }
    assert {document["ok"], document["busy"]} == {False}
    assert main(["status", file]) == 3
    said = capsys.readouterr()
    assert said.out.splitlines()[:3] == [
        "prod  external",
        "  unit       state        at           model  role  version  routed",
        "  prefill-0  unreachable  127.0.0.1:1",
    ]
    assert "prefill-0: http://127.0.0.1:1/health: connection refused" in said.err
    assert not state_root().exists()


@pytest.mark.parametrize("launcher", ["external", "{kind: extern}"])
def test_a_launcher_that_is_none_is_not_taken_for_ours(
    launcher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`absent` would be said of a fleet that runs; one of ours is looked at and ended whatever its file says now."""
    path = tmp_path / "prod.yaml"
    path.write_text(FLEET.replace("{kind: external}", launcher))
    assert main(["status", str(path)]) == 2
    assert "launcher" in capsys.readouterr().err
    (state_root() / "prod").mkdir(parents=True)
    assert main(["status", str(path)]) == 3


# ---- logs ----


@pytest.fixture
def logged(tmp_path: Path) -> str:
    path = tmp_path / "prod.yaml"
    path.write_text(
        FLEET.replace("[http://127.0.0.1:1]", "[{url: 'http://127.0.0.1:1', log: p.log}]").replace(
            "[http://127.0.0.1:2]", "[{url: 'http://127.0.0.1:2', log: d.log}, http://127.0.0.1:3]"
        )
    )
    (tmp_path / "p.log").write_text("2026-12-01 10:00:00 prefill api_key=hunter2\n2026-12-01 10:00:02 prefill again\n")
    (tmp_path / "d.log").write_text("2026-12-01 10:00:01 decode\n")
    return str(path)


@pytest.mark.code("PD3120")
def test_logs_are_those_of_the_file_beside_it_and_what_is_missing_is_said(
    logged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["logs", logged]) == 2
    said = capsys.readouterr()
    assert [line.split()[0] for line in said.out.splitlines()] == ["prefill-0", "decode-0", "prefill-0"]
    assert "hunter2" not in said.out
    assert said.err == "PD3120  decode-1: no log is given\n"
    assert main(["logs", logged, "decode-0"]) == 0
    assert main(["logs", logged, "decode-1"]) == 2


@pytest.mark.code("PD3121")
def test_a_log_that_cannot_be_read_keeps_no_other_from_being_shown(
    logged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.log").unlink()
    assert main(["logs", logged]) == 2
    said = capsys.readouterr()
    assert "prefill again" in said.out
    assert f"PD3121  {tmp_path}/d.log  decode-0: its log cannot be read: no such file or directory" in said.err
    (tmp_path / "d.log").mkdir()
    assert main(["logs", logged, "decode-0"]) == 2
    assert "its log cannot be read: is a directory" in capsys.readouterr().err


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(logged: str, tmp_path: Path) -> None:
    (tmp_path / "d.log").unlink()
    os.mkfifo(tmp_path / "d.log")
    assert main(["logs", logged, "decode-0"]) == 2
