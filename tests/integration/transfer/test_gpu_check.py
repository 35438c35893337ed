"""`tools/gpu_check.py`: runs through on the CPU, says what it finds, and never calls wrong bytes right."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
TOOL = ROOT / "tools" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=110)


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_all_of_it_runs_on_the_cpu() -> None:
    """The table that a machine with a GPU prints, over both fabrics, in a small size."""
    done = run("--device", "cpu", "--rooms", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for fabric in ("mooncake", "nixl"):
        for tps in ("1 to 2", "2 to 1"):
            (line,) = (line for line in lines if line.startswith(f"✓ {fabric}, TP {tps}"))
            assert "bytes equal" in line
            assert "over tcp" in line
    assert sum(line.startswith("✓ TP ") and line.endswith("equal") for line in lines) == 18
    for what in ("gather, TP 1 to 2", "scatter, TP 2 to 1", "full sums of a request", "overlap with a matmul"):
        assert [line for line in lines if line.startswith(f"  {what}")]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOL.parent)
    import gpu_check

    monkeypatch.setattr(gpu_check, "ROUNDS", 1)
    return gpu_check


@pytest.mark.parametrize(("device", "why"), [("cuda:0", "no GPU that torch can use"), ("xpu", "no way to copy on xpu")])
def test_what_is_missing_is_said(
    tool: Any, device: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tool.main(["--device", device]) == 1
    said = capsys.readouterr()
    assert why in said.err
    assert said.out == ""


@pytest.mark.parametrize("broken", ["gather", "scatter", "sums"])
def test_a_copier_that_does_nothing_is_found(
    tool: Any, broken: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool, "end_to_end", lambda *asked: iter(()))
    monkeypatch.setattr(tool.gpu_pair.TorchCopier, broken, lambda *asked: {})
    assert tool.main(["--device", "cpu"]) == 3
    assert "WRONG" in capsys.readouterr().out


def test_a_pair_that_fails_is_a_line_of_the_table(
    tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*asked: Any) -> Any:
        raise RuntimeError("PD4014 (decode) no memory")

    for part in ("equal", "bandwidth"):
        monkeypatch.setattr(tool, part, lambda *asked: iter(()))
    monkeypatch.setattr(tool.gpu_pair.Other, "move", fails)
    assert tool.main(["--device", "cpu", "--fabric", "nixl"]) == 3
    assert capsys.readouterr().out.count("FAILED: PD4014 (decode) no memory") == 2
