"""Text from elsewhere, where it meets a terminal: shown, and not obeyed."""

import json
from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.cli.output import note, table
from pdctl.hosts.exec import unreachable
from pdctl.launch.state import FleetFolder, FleetState, UnitEntry
from pdctl.up.wait import excerpt

EVIL = "\x1b]0;PWNED\x07\x1b[2J\u202e"
SHOWN = "\\x1b]0;PWNED\\x07\\x1b[2J\\u202e"
MANIFEST = Path(__file__).parents[1] / "check/golden"


def acts(text: str) -> bool:
    return any(not (char.isprintable() or char in "\n\t") for char in text)


def test_an_error_quotes_without_obeying(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(json.dumps({"schema": EVIL, f"k{EVIL}": f"--api-key=S3{EVIL}"}))
    for words in (["explain", EVIL], ["status", EVIL], [EVIL], ["check", str(tmp_path / "f.yaml")], ["up", f"x{EVIL}"]):
        assert app.main(words) in (2, 3)
        said = capsys.readouterr()
        assert not acts(said.out + said.err), words
        assert "PWNED" in said.err
        assert "S3" not in said.err


def test_a_state_file_cannot_act_through_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = FleetFolder("f")
    folder.path.mkdir(parents=True)
    unit = UnitEntry(f"u{EVIL}", "router", "127.0.0.1", {"http": 1})
    folder.write(
        FleetState(
            fleet="f", file="", digest="", pdctl="", phase=f"x{EVIL}", since=0, url=f"http://{EVIL}", units=(unit,)
        )
    )
    assert app.main(["status", "f"]) == 3
    said = capsys.readouterr()
    assert not acts(said.out + said.err)
    assert f"f  x{SHOWN}  http://{SHOWN}" in said.out
    assert f"u{SHOWN}" in said.out


def test_a_manifest_cannot_act_through_layout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--engine", "reference", "--role", "prefill", "--model", "builtin:tiny-hybrid"]
    assert app.main(["layout", *words, "-o", "json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    manifest["model"]["family"] = EVIL
    manifest["engine"]["version"] = EVIL
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    for form in ("table", "json"):
        assert app.main(["layout", str(tmp_path / "m.json"), "-o", form]) == 0
        assert not acts(capsys.readouterr().out)


def test_a_log_cannot_act_through_an_error_and_tells_no_secret(tmp_path: Path) -> None:
    log = tmp_path / "unit.log"
    log.write_text(f"server_args=ServerArgs(api_key='S3', port=1)\n{EVIL}\n")
    assert excerpt(log) == f"    | server_args=ServerArgs(api_key='…', port=1)\n    | {SHOWN}"


LINE = f"\x1b[2mINFO\x1b[0m api_key='S3' {EVIL}"


@pytest.mark.parametrize(
    ("flags", "terminal", "shown"),
    [
        ([], True, f"INFO api_key='…' {SHOWN}"),
        ([], False, f"\x1b[2mINFO\x1b[0m api_key='…' {EVIL}"),
        (["--raw"], True, LINE),
        (["--raw", "-n", "1"], False, LINE),
    ],
)
def test_logs_are_cleaned_for_terminals_and_tell_no_secret_unless_raw(
    flags: list[str],
    terminal: bool,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    unit = FleetFolder("f").units / "prefill-0"
    unit.mkdir(parents=True)
    (unit / "unit.log").write_text(f"{LINE}\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert app.main(["logs", "f", *flags]) == 0
    assert capsys.readouterr().out == f"{shown}\n"


def test_progress_and_tables_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    note(f"prefill-0 {EVIL}")
    assert capsys.readouterr().err == f"prefill-0 {SHOWN}\n"
    assert table([(EVIL, "x")], ("a", "b")) == [f"{'a':<{len(SHOWN)}}  b", f"{SHOWN}  x"]


@pytest.mark.parametrize("stderr", ["", "Host key verification failed.", "Permission denied (publickey)."])
def test_a_hint_with_a_host_in_it_can_be_copied_into_a_shell(stderr: str) -> None:
    hint = unreachable("a;touch x", stderr).hint or ""
    assert "ssh 'a;touch x'" in hint
