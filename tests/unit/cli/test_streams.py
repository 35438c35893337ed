"""Standard streams that are full, closed or left by their reader, and a Ctrl-C before anything has begun."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pdctl.cli import app
from pdctl.cli.output import done_anyway, result
from pdctl.errors import OutputError

FLEET = Path(__file__).parents[3] / "examples/tiny-hybrid.yaml"
FULL = "> /dev/full"
CLOSED = ">&-"


def shell(words: str) -> subprocess.CompletedProcess[str]:
    line = words.replace("pdctl", f"{sys.executable} -m pdctl", 1)
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.code("PD0040")
@pytest.mark.parametrize(
    "words",
    [
        f"pdctl --help {FULL}",
        f"pdctl up --help {FULL}",
        f"pdctl schema {FULL}",
        f"pdctl explain PD1001 {CLOSED}",
        f"pdctl check {FLEET} -o json {FULL}",
        f"pdctl check {FLEET} {CLOSED}",
    ],
)
def test_output_that_cannot_be_written_is_told_in_a_line(words: str) -> None:
    """Each was `unexpected OSError`, "a fault of pdctl": in CI, that sends people to the wrong place."""
    ran = shell(words)
    reason = "no space left on device" if FULL in words else "bad file descriptor"
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"error PD0040  cannot write standard output: {reason}\n")
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["schema"], ["up", "--help"], ["--help"]])
def test_a_reader_that_leaves_is_what_shells_expect_of_it(words: list[str], unbuffered: str) -> None:
    """`pdctl schema | head -1`: not 1, for nothing failed."""
    read, write = os.pipe()
    os.close(read)
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ran = subprocess.run(
        [sys.executable, "-m", "pdctl", *words], stdout=write, stderr=subprocess.PIPE, check=False, env=env, timeout=60
    )
    os.close(write)
    assert (ran.returncode, ran.stderr) == (141, b"")


@pytest.mark.parametrize("where", ["2>&-", "2> /dev/full", ">&- 2>&- <&-"])
def test_an_error_that_nobody_hears_keeps_its_status(where: str) -> None:
    assert shell(f"pdctl check /nonexistent {where}").returncode == 2
    assert shell(f"pdctl chekc {where}").returncode == 2


def test_a_closed_stream_is_not_taken_by_the_next_file(tmp_path: Path) -> None:
    """A state file that is opened as number 1 would get what is printed."""
    script = (
        "import os; from pdctl.cli.streams import settle; settle();"
        f"file = open({str(tmp_path / 'state')!r}, 'w'); print(file.fileno(), file=file)"
    )
    subprocess.run(["bash", "-c", f'"{sys.executable}" -c "{script}" >&- 2>&- <&-'], check=True, timeout=60)
    assert int((tmp_path / "state").read_text()) > 2


def test_what_is_done_is_told_on_standard_error_where_its_result_cannot_be_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`up` and `down` end with the status of what they did."""

    def write(text: str) -> None:
        raise OutputError("cannot write standard output: no space left on device")

    monkeypatch.setattr(sys.stdout, "write", write)
    with done_anyway("f is up at http://127.0.0.1:1"):
        result("f is up")
    said = "f is up at http://127.0.0.1:1; cannot write standard output: no space left on device\n"
    assert capsys.readouterr().err == said


@pytest.mark.code("PD0044")
@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied", "/x/\x1b[31m"), "/x/\\x1b[31m: permission denied"),
        (OSError(24, "Too many open files"), "too many open files"),
        (MemoryError(), "not enough memory"),
    ],
)
def test_what_the_machine_refuses_is_no_fault_of_pdctl(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error

    module: Any = ModuleType("pdctl.cli.schema")
    module.command = command
    monkeypatch.setitem(sys.modules, "pdctl.cli.schema", module)
    assert app.main(["schema"]) == 1
    assert capsys.readouterr().err.startswith(f"error PD0044  {says}\n")


IMPORTED = ["pdctl.cli.streams", "pdctl.cli.app", "typer", "msgspec", "pydantic", "yaml", "pdctl.check", "pdctl.report"]


@pytest.mark.parametrize("module", IMPORTED)
def test_ctrl_c_while_it_imports_is_no_traceback(module: str, tmp_path: Path) -> None:
    """Imports are most of a short command's life."""
    (tmp_path / "interrupting.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"sys.argv = ['pdctl', 'check', {str(FLEET)!r}]\n"
        "from pdctl.__main__ import main\n"
        "sys.exit(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, tmp_path / "interrupting.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
