"""Completion: what may come next, quickly, in a real bash."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.cli.complete import POSITIONALS
from pdctl.cli.completion import SCRIPTS
from pdctl.cli.parser import parser_of
from pdctl.launch.state import FleetFolder, FleetState
from tests.unit.cli.test_app import HEAVY

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "other"):
        folder = FleetFolder(name)
        for unit in ("prefill-0", "decode-0", "router"):
            (folder.units / unit).mkdir(parents=True)
        folder.write(FleetState(fleet=name, file="/f", digest="", pdctl="0", phase="up", since=0.0))
    Path("mine.yaml").write_text("schema: pdctl.fleet/v1\nname: one\n")
    Path("theirs.yaml").write_text(
        "schema: pdctl.fleet/v1\nname: one\nmodel: {path: m}\nengine: vllm\nlauncher: {kind: external}\n"
        "prefill: {urls: [http://h:1, http://h:2]}\ndecode: {urls: [http://h:3]}\n"
    )


def offered(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert app.main(["--complete", *words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [line.partition("\t")[0] for line in captured.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["sta"], ["status"]),
        (["-q", "sta"], ["status"]),
        (["--ver"], ["--version", "--verbose"]),
        (["status", ""], ["one", "other", ":file"]),
        (["status", "on"], ["one", ":file"]),
        (["status", "one", ""], []),
        (["logs", "one", "r"], ["router"]),
        (["logs", "one", "router", ""], ["decode-0", "prefill-0"]),
        (["logs", "-n", "5", "one", "r"], ["router"]),
        (["logs", "-n", "5", ""], ["one", "other", ":file"]),
        (["logs", "mine.yaml", "r"], ["router"]),
        (["logs", "theirs.yaml", "prefill-0", ""], ["prefill-1", "decode-0"]),
        (["restart", "one", "d"], ["decode-0"]),
        (["explain", "PD302"], ["PD3020", "PD3021", "PD3022"]),
        (["check", "--ignore", "PD302"], ["PD3020", "PD3021", "PD3022"]),
        (["up", ""], [":file"]),
        (["up", "--ke"], ["--keep"]),
        (["up", "--skip-phase", "pa"], ["pairs"]),
        (["up", "-o", ""], ["table", "json"]),
        (["up", "--output", "=", "j"], ["json"]),
        (["up", "--output=j"], ["json"]),
        (["up", "--output", "="], ["table", "json"]),
        (["init", "--engine", "s"], ["sglang"]),
        (["init", "--model", "x"], [":file"]),
        (["completion", "f"], ["fish"]),
        (["help", "sta"], ["status"]),
        (["nothing", ""], []),
        (["logs", "gone.yaml", ""], []),
        (["logs", "../..", ""], []),
        (["logs", "\0", ""], []),
    ],
)
def test_what_may_come_next(words: list[str], candidates: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, *words) == candidates


def test_every_command_and_option_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert offered(capsys, "") == [*(command.name for command in app.COMMANDS), "help"]
    for command in app.COMMANDS:
        params = parser_of(command).params
        flags = [flag for one in params for flag in one.opts if flag.startswith("-")]
        assert set(offered(capsys, command.name, "-")) == {"--help", *flags}
        assert (command.name in POSITIONALS) == any(one.param_type_name == "argument" for one in params), command


@pytest.mark.parametrize("words", [("",), ("status", ""), ("logs", "mine.yaml", ""), ("explain", "PD")])
def test_nothing_heavy_is_imported_for_it(words: tuple[str, ...]) -> None:
    script = f"import sys; from pdctl.cli.app import main; main(['--complete', *{words!r}]); print('|', *sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = {name.partition(".")[0] for name in ran.stdout.rpartition("|")[2].split()}
    assert (HEAVY - {"msgspec"}).isdisjoint(modules)


def test_a_real_bash_completes_at_the_tab(tmp_path: Path) -> None:
    """The whole way: `source`, `complete`, a key pressed in a terminal."""
    program = tmp_path / "bin/pdctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m pdctl "$@"\n')
    program.chmod(0o755)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PS1": "ready> ",
            "TERM": "dumb",
            "HISTFILE": "",
        }
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    try:
        _until(terminal, "ready> ")
        os.write(terminal, b"source <(pdctl completion bash); complete -p pdctl\n")
        _until(terminal, "complete -F _pdctl pdctl\r\n")
        os.write(terminal, b"pdctl sta\t")
        _until(terminal, "pdctl status ")
        os.write(terminal, b"on\t")
        _until(terminal, "one ")
        os.write(terminal, b"\x15pdctl logs mi\t")
        _until(terminal, "pdctl logs mine.yaml ")
        os.write(terminal, b"pre\t--ta\t")
        _until(terminal, "--tail ")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def _until(terminal: int, text: str) -> None:
    """Read what the terminal shows until this was in it. Raises AssertionError after a while."""
    seen, ends = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < ends, seen
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096).decode("utf-8", "replace")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "--complete" in said
    if shell == "bash":
        subprocess.run(["bash", "-n", "-c", said], check=True)
