"""The tool that builds the engines' environments: what names them, what counts as built."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "engine_envs.py"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The tool with two small locks, and steps that only note what they would run."""
    spec = importlib.util.spec_from_file_location("engine_envs", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "engine_envs", module)
    spec.loader.exec_module(module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "TESTS", tmp_path)
    (tmp_path / "locks").mkdir()
    (tmp_path / "shims" / "sglang").mkdir(parents=True)
    (tmp_path / "locks" / "sglang.txt").write_text("sglang==0.5.23\n")
    steps: list[tuple[str, ...]] = []

    def run(*command: str, **_: Any) -> None:
        steps.append(command)
        if "venv" in command:
            (Path(command[-1]) / "bin").mkdir(parents=True)

    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(module, "lay_over", lambda *_: None)
    module.steps = steps  # type: ignore[attr-defined]
    return module


def test_a_built_environment_is_used_as_it_is(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["sglang"]) == 0
    built = len(tool.steps)
    assert tool.main(["sglang"]) == 0
    assert len(tool.steps) == built
    assert tool.main(["sglang", "--print-python"]) == 0
    lines = capsys.readouterr().out.split()
    assert lines[1] == lines[3] == lines[4]
    assert (tool.envs() / "sglang" / "bin").is_dir()  # the link that adapters look for


def test_another_lock_or_shim_is_another_environment(tool: Any) -> None:
    environment = tool.ENVIRONMENTS["sglang"]
    first = environment.digest()
    environment.lock.write_text("sglang==0.5.24\n")
    second = environment.digest()
    (environment.overlay / "shim.py").write_text("")
    assert len({first, second, environment.digest()}) == 3


def test_what_was_interrupted_is_built_again(tool: Any) -> None:
    tool.main(["sglang"])
    (tool.ENVIRONMENTS["sglang"].folder() / tool.COMPLETE).unlink()
    before = len(tool.steps)
    assert tool.main(["sglang"]) == 0
    assert len(tool.steps) == 2 * before


def test_asking_builds_nothing_and_says_how(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["sglang", "--print-python"]) == 1
    assert tool.steps == []
    assert "python tools/engine_envs.py sglang" in capsys.readouterr().err


def test_locks_pin_every_distribution() -> None:
    """They are installed without dependency resolution: a range would drift, a missing pin would break at import."""
    for lock in (Path(__file__).parents[2] / "engines" / "locks").glob("*.txt"):
        lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        assert len(lines) > 50
        assert [line for line in lines if line.count("==") != 1] == []
