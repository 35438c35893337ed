"""On a narrow terminal: nothing wider than it, no colour where there is none, and help in one spelling."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.cli.output import fitted
from pdctl.cli.progress import Spinner
from pdctl.launch.state import FleetFolder, FleetState, UnitEntry

ROOT = Path(__file__).parents[3]
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(columns: int, *words: str, err: int | None = None, state: Path | None = None) -> str:
    """What `pdctl` writes to a terminal of that many columns; its standard error there, too, unless given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    env |= {"TERM": "xterm", **({"XDG_STATE_HOME": str(state)} if state else {})}
    running = subprocess.Popen(
        [sys.executable, "-m", "pdctl", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if err is None else err,
        cwd=ROOT,
        env=env,
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:  # its other end is closed
        pass
    os.close(ours)
    running.wait(60)
    return said.decode().replace("\r\n", "\n")


def test_an_error_is_wrapped_and_coloured_on_a_terminal_alone() -> None:
    words = ["preflight", "--backend", "a name that nobody would ever give to a transfer backend of any engine at all"]
    said = on_terminal(60, *words)
    assert said.startswith("\x1b[1;31merror\x1b[0m PD0001 --backend  found ")
    assert max(map(len, COLOUR.sub("", said).splitlines())) <= 60
    read, write = os.pipe()
    assert on_terminal(60, *words, err=write) == ""
    os.close(write)
    with os.fdopen(read) as piped:
        assert COLOUR.search(text := piped.read()) is None
    assert text.count("\n") == 1


def test_status_fits_a_narrow_terminal(tmp_path: Path) -> None:
    names = ("prefill-0", "decode-0", "aggregate-0", "router")
    folder = FleetFolder("f", tmp_path / "pdctl")
    folder.path.mkdir(parents=True)
    units = tuple(UnitEntry(name, "r", "127.0.0.1", {"http": 20000}) for name in names)
    folder.write(
        FleetState(fleet="f", file="", digest="", pdctl="", phase="up", since=0, url="http://h:1", units=units)
    )
    said = on_terminal(60, "status", "f", state=tmp_path)
    assert all(name in said for name in names)
    assert max(map(len, COLOUR.sub("", said).splitlines())) <= 60
    folder.write(
        FleetState(fleet="f", file="", digest="", pdctl="", phase="down", since=0, url="http://h:1", units=units)
    )
    down = on_terminal(60, "status", "f", state=tmp_path)
    assert "http://" not in down, "nothing answers there"
    assert COLOUR.search(down) is None, "what is down as asked is no alarm"


def test_a_table_leaves_columns_out_in_the_order_given() -> None:
    rows, header = [("prefill-0", "ready", "1 min", "killed by SIGKILL")], ("unit", "state", "since", "last exit")
    assert "since" in fitted(rows, header, ("since", "state"), None)[0]
    assert fitted(rows, header, ("since", "state"), 40)[0].split() == ["unit", "state", "last", "exit"]
    assert fitted(rows, header, ("since", "state"), 10)[0].split() == ["unit", "last", "exit"]


def test_a_phase_does_not_claim_what_is_not_yet_true(capsys: pytest.CaptureFixture[str]) -> None:
    """`completion  a first completion came back and is right`, after a tenth of a second."""
    spinner = Spinner(10)
    try:
        spinner.phase_began("completion", "a first completion came back and is right")
        assert spinner._phase is not None
        assert spinner._phase[1] == "until a first completion came back and is right"
    finally:
        spinner.close()


@pytest.mark.parametrize("command", [command.name for command in app.COMMANDS])
def test_help_has_one_spelling(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Capitals stand for values, brackets for what may be left out; choices are listed."""
    assert app.main([command, "--help"]) == 0
    said = capsys.readouterr().out
    usage = said.splitlines()[0].removeprefix(f"Usage: pdctl {command} ")
    assert re.fullmatch(r"\[OPTIONS\]( \[?[A-Z|]+\]?(\.\.\.)?)*", usage)
    assert not re.search(r"<(str|int|float|path|text)[ >]|\{[A-Z]", said)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["layout", "--tp", "x"], "'x' is not a whole number"),
        (["preflight", "--wait", "x"], "'x' is not a number"),
        (["logs", "f", "-n", "-1"], "-1 is less than 0"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_in_words(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.main(words) == 2
    assert says in capsys.readouterr().err
