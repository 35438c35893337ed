"""The outermost edge: what the help costs, what mistakes are told, and which exit status errors become."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pdctl.cli import app
from pdctl.errors import FindingsError, FleetFileError, GateError, InputError, Interrupted, PdctlError
from pdctl_transfer.errors import FabricError, ManifestError

HEAVY = {"torch", "textual", "pydantic", "numpy", "typer", "click", "rich", "httpx", "yaml", "msgspec", "psutil"}


@pytest.mark.parametrize("flag", ["--version", "--help", "-h"])
def test_version_and_help_import_nothing_heavy(flag: str) -> None:
    """A start that imports torch takes seconds; each of these costs more than the whole help may."""
    script = "import sys; from pdctl.cli.app import main; main(sys.argv[1:]); print('|', *sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script, flag], capture_output=True, text=True, check=True)
    modules = ran.stdout.rpartition("|")[2].split()
    assert HEAVY.isdisjoint(module.partition(".")[0] for module in modules)
    ours = {module for module in modules if module.startswith("pdctl")}
    assert ours <= {"pdctl", "pdctl.cli", "pdctl.cli.app", "pdctl.cli.commands", "pdctl.cli.verbosity"}


def test_every_command_of_the_table_can_be_called_and_says_what_it_takes() -> None:
    """A row without a module would be a traceback in the operator's face."""
    for command in app.COMMANDS:
        assert app.main([command.name, "--help"]) == 0


def test_the_top_level_help_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.code("PD0001")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["statsu"], 'pdctl  no command "statsu"\n  did you mean "status"?'),
        (["--vresion"], 'pdctl  no option "--vresion"\n  did you mean "--version"?'),
        (["up", "--kep", "x.yaml"], "pdctl up  No such option: --kep\n  did you mean --keep?\n"),
        (["status", "x", "-o", "jsn"], "pdctl status  Invalid value for '--output' / '-o'"),
        (["up", "--skip-phase", "pair", "{fleet}"], '--skip-phase  no phase "pair"\n  did you mean "pairs"?'),
    ],
)
def test_a_mistyped_word_is_told_with_the_nearest(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Path(__file__).parents[3] / "examples/tiny-hybrid.yaml"
    assert app.main([word.format(fleet=fleet) for word in words]) == 2
    captured = capsys.readouterr()
    assert f"error PD0001 {says}" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (PdctlError("broken", code="PD3016", hint="mend it"), 1, "error PD3016  broken\n  mend it\n"),
        (InputError("odd", where="a.yaml:3"), 2, "error PD0001 a.yaml:3  odd\n"),
        (ManifestError("m.json", "$.stages", "is empty"), 2, "error PD0021 m.json  $.stages: is empty\n"),
        pytest.param(GateError("shut"), 3, "error PD3000  shut\n", marks=pytest.mark.code("PD3000")),
        (FindingsError("found", code="PD3020"), 3, "error PD3020  found\n"),
        (FabricError("cut"), 1, "error PD4010  cut\n"),
        (Interrupted("stopped"), 130, "error PD3001  stopped\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_the_exit_statuses_of_the_contract(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _let_schema(error, monkeypatch)
    assert app.main(["schema"]) == status
    assert capsys.readouterr().err == says


@pytest.mark.code("PD0000")
def test_what_nobody_expected_is_one_line_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PDCTL_DEBUG", raising=False)
    _let_schema(ZeroDivisionError("by zero"), monkeypatch)
    assert app.main(["schema"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error PD0000 test_app.py:")
    assert "unexpected ZeroDivisionError: by zero\n  this is a fault of pdctl; PDCTL_DEBUG=1 shows the traceback" in err


def test_all_faults_of_a_fleet_file_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = FleetFileError("one", where="f.yaml:1")
    error.others = (FleetFileError("two", where="f.yaml:2"),)
    _let_schema(error, monkeypatch)
    assert app.main(["schema"]) == 2
    assert capsys.readouterr().err == "error PD0002 f.yaml:1  one\nerror PD0002 f.yaml:2  two\n"


def test_no_colour_but_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    app.main(["nothing"])
    assert "\x1b" not in capsys.readouterr().err


def _let_schema(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pdctl schema` raises `error`."""

    def command() -> None:
        raise error

    module: Any = ModuleType("pdctl.cli.schema")
    module.command = command
    monkeypatch.setitem(sys.modules, "pdctl.cli.schema", module)
