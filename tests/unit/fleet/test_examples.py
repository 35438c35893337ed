"""Every example fleet is checked as a user would check it, from its file alone, and fits."""

from pathlib import Path

import pytest

from pdctl.check import Options, check

EXAMPLES = Path(__file__).parents[3] / "examples"
PAIRS = {
    "tiny-hybrid": 1,
    "sglang-cpu": 1,
    "vllm-cpu": 1,
    "qwen3-next-sglang": 2,
    "deepseek-wide": 10,
    "llama-vllm-nixl": 2,
    "external": 2,
    "sglang-core": 1,
    "vllm-core": 1,
}


@pytest.mark.parametrize(("example", "pairs"), PAIRS.items())
def test_an_example_fits(example: str, pairs: int) -> None:
    report = check([EXAMPLES / f"{example}.yaml"], Options())
    assert report.ok
    assert [pair.verdict for pair in report.pairs] == ["fits"] * pairs


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == PAIRS.keys()
