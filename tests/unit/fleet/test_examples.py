"""The production-shaped examples are checked, not run: each must fit on the model that it names."""

import shutil
from pathlib import Path

import pytest

from pdctl.check import Options, check_fleet
from pdctl.fleet import load_fleet

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests/data/oracle/configs"


@pytest.mark.parametrize(
    ("example", "config", "pairs"),
    [
        ("qwen3-next-sglang", "qwen3_next_80b", 2),
        ("deepseek-wide", "deepseek_v3", 10),
        ("llama-vllm-nixl", "llama31_70b", 2),
    ],
)
def test_a_production_example_fits(example: str, config: str, pairs: int, tmp_path: Path) -> None:
    shutil.copy(CONFIGS / f"{config}.json", tmp_path / "config.json")
    report = check_fleet(load_fleet(ROOT / f"examples/{example}.yaml"), Options(model=tmp_path))
    assert report.ok
    assert [pair.verdict for pair in report.pairs] == ["fits"] * pairs
