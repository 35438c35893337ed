"""`-q`, `-v`, and the variables that `--help` names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.cli import app
from pdctl.cli.verbosity import QUIET, USUAL, VERBOSE, level

ROOT = Path(__file__).parents[3]
ELSEWHERE = {
    "PATH",
    "TERM",
    "PDCTL_API_KEY",
    "PDCTL_CONTROL_KEY",
    "PDCTL_CORE",
    "PDCTL_CORE_OPTIONS",
    "MC_TCP_LANES_PER_PEER",
    "MC_FORCE_TCP",
    "MOONCAKE_PROTOCOL",
}
"""Read, and the system's own business, or how `up` hands over what the fleet file names."""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["schema"], USUAL),
        (["-q", "schema"], QUIET),
        (["schema", "-q"], QUIET),
        (["--quiet", "schema"], QUIET),
        (["schema", "--verbose"], VERBOSE),
        (["-v", "schema"], VERBOSE),
        (["-v", "-q", "schema"], QUIET),
    ],
)
def test_before_the_command_and_behind_it(words: list[str], wanted: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(words) == 0
    assert level() == wanted
    assert app.main(["schema"]) == 0
    assert level() == USUAL, "of one call, not of the next"


def test_every_command_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    for command in app.COMMANDS:
        assert app.main([command.name, "--help"]) == 0
        said = capsys.readouterr().out
        assert "-q, --quiet" in said, command
        assert "-v, --verbose" in said, command
        assert "`pdctl --help` lists" in said, command


def test_quiet_takes_progress_and_leaves_results_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.main(["init", "-q"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("wrote fleet.yaml\n", "")
    assert app.main(["-q", "check"]) == 0
    assert "of this folder" not in capsys.readouterr().err
    assert app.main(["-q", "explain", "PD9999"]) == 2
    assert "error PD0001" in capsys.readouterr().err


def test_the_help_names_the_variables_that_the_sources_read(capsys: pytest.CaptureFixture[str]) -> None:
    read = {name for path in _sources() for name in _read_in(path)}
    assert set(app.ENVIRONMENT) == {*read} - ELSEWHERE
    assert app.main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in app.ENVIRONMENT)
    page = (ROOT / "docs/commands.md").read_text()
    assert [name for name in app.ENVIRONMENT if f"`{name}`" not in page] == []


def _sources() -> Iterator[Path]:
    for package in ("pdctl", "transfer/pdctl_transfer", "topology/pdctl_topology"):
        yield from (ROOT / package).rglob("*.py")


def _read_in(path: Path) -> Iterator[str]:
    """Names that `os.environ.get(…)`, `os.getenv(…)` and `os.environ[…]` are asked for, except where they are set."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.search(r"(environ\.get|getenv)$", ast.unparse(node.func)):
            yield from _names(node.args[0], tree)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and "environ" in ast.unparse(node.value):
            yield from _names(node.slice, tree)


def _names(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    match node:
        case ast.Constant(value=str(name)):
            yield name
        case ast.JoinedStr():
            assert "{engine.upper()" in ast.unparse(node), "a variable whose name is computed"
            yield from ("PDCTL_SGLANG_PYTHON", "PDCTL_VLLM_PYTHON", "PDCTL_VLLM_ASCEND_PYTHON")
        case ast.Name(id=name) if name.islower():
            return  # a name that the fleet file gives: `api_key_env`
        case ast.Name(id=name) | ast.Attribute(attr=name):
            constant = re.compile(rf'^{name}(?:: Final(?:\[str\])?)? = "(\w+)"', re.MULTILINE)
            found = {one for path in _sources() for one in constant.findall(path.read_text())}
            assert len(found) == 1, f"{name} is {found}"
            yield from found
        case _:
            raise AssertionError(f"a variable whose name is computed: {ast.unparse(node)}")
