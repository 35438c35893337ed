"""Every command, in every form of its output, over thirty kinds of unusable input.

The exit status of the contract, a document where one is promised, a coded line in words, and neither a traceback nor
"a fault of pdctl" nor a long wait.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pdctl.cli import app
from tests.unit.cli.unusable import BY_NAME, COMMANDS, DOCUMENTS, KINDS, NAMED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("unusable")
    for kind, make in KINDS.items():
        if make is not None:
            make(made / _name(kind))
    return made


def _name(kind: str) -> str:
    return f"{kind.replace(' ', '-')}.yaml"


def _line(command: str, kind: str, form: str) -> list[str]:
    words, _ = COMMANDS[command]
    return [word.replace("{}", _name(kind)) for word in words] + (["-o", form] if form else [])


def _require(command: str, kind: str, form: str, status: int | str, out: str, err: str) -> None:
    named = kind in NAMED and command in BY_NAME
    assert status == (BY_NAME[command] if named else 2), err
    assert named or err.startswith("error PD"), err
    for text in ("PD0000", "PD0044", "Traceback", "\x1b", "PWNED\x07"):
        assert text not in out + err
    assert max(map(len, err.splitlines()), default=0) < 1300
    if form == "junit":
        assert ET.fromstring(out).get("failures") != "0"
    elif form in DOCUMENTS:
        document = json.loads(out)
        assert named or document.get("findings") or document["runs"][0]["results"]
    elif not named:
        assert out == ""


def test_there_are_thirty_kinds_and_every_command_that_takes_a_file() -> None:
    assert len(KINDS) >= 30
    takes_none = {"ps", "init", "discover", "explain", "schema", "completion"}
    assert {command.name for command in app.COMMANDS} - takes_none == {words[0] for words, _ in COMMANDS.values()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_unusable_input_has_words(
    command: str, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    began = time.process_time()
    for form in COMMANDS[command][1]:
        status = app.main(_line(command, kind, form))
        captured = capsys.readouterr()
        _require(command, kind, form, status, captured.out, captured.err)
    assert time.process_time() - began < 5
    assert not (folder / "state").exists(), "nothing was begun"


SAMPLE = [
    ("check", "fifo", "sarif"),
    ("check", "unending", "json"),
    ("check", "deep json", "junit"),
    ("check", "wide", "table"),
    ("check", "bomb", "json"),
    ("plan", "megabytes", "json"),
    ("layout", "zero", "json"),
    ("preflight", "deep flow", "sarif"),
    ("up", "huge number", "json"),
    ("status", "fifo", "json"),
    ("logs", "socket", ""),
    ("down", "long name", "json"),
]


@pytest.mark.parametrize(("command", "kind", "form"), SAMPLE)
def test_the_same_holds_of_a_process_with_little_room(command: str, kind: str, form: str, folder: Path) -> None:
    """500 MB of address space and five seconds of CPU."""
    limits = ["prlimit", f"--as={500 << 20}", "--cpu=5"]
    ran = subprocess.run(
        [*limits, sys.executable, "-m", "pdctl", *_line(command, kind, form)],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    _require(command, kind, form, ran.returncode, ran.stdout, ran.stderr)


def test_a_folder_that_may_not_be_searched_is_told(folder: Path, tmp_path: Path) -> None:
    """Of a user who may not pass every door, as root may: without these capabilities, root is one."""
    root = tmp_path / "closed"
    (root / "pdctl" / "f").mkdir(parents=True)
    root.chmod(0)
    drop = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    try:
        for words in (["status", "f"], ["down", "f"], ["logs", "f"], ["ps"]):
            ran = subprocess.run(
                [*drop, sys.executable, "-m", "pdctl", *words],
                cwd=folder,
                env={**os.environ, "XDG_STATE_HOME": str(root)},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert ran.returncode in (1, 3), ran.stderr
            assert "permission denied" in ran.stderr
            assert "PD0000" not in ran.stderr
    finally:
        root.chmod(0o700)
