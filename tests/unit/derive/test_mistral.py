"""Mistral's params.json: the same geometry as the config.json of the same model."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.derive.source import read_config
from pdctl.engines.models import is_there
from pdctl.errors import ConfigError
from tests.unit.derive.models import LLAMA, MLA

SMALL: dict[str, Any] = {"dim": 512, "n_layers": 4, "n_heads": 8, "n_kv_heads": 2, "head_dim": 64, "hidden_dim": 1024}
LARGE: dict[str, Any] = {
    "dim": 512,
    "n_layers": 3,
    "n_heads": 8,
    "n_kv_heads": 8,
    "head_dim": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "moe": {"num_experts": 8, "num_shared_experts": 1},
}


def read(folder: Path, params: Any, name: str = "params.json") -> Any:
    (folder / name).write_text(json.dumps(params))
    return read_config(folder)[0]


def layout(config: Any, engine: str) -> Derived:
    return derive(Request(engine=engine, role="prefill", config=config, page_size=64))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize(
    ("params", "same"),
    [(SMALL, LLAMA), (LARGE, {**MLA, "num_nextn_predict_layers": None})],
)
def test_the_same_layout_as_of_a_config(tmp_path: Path, engine: str, params: Any, same: Any) -> None:
    config = read(tmp_path, params)
    assert layout(config, engine).manifest.stages == layout(same, engine).manifest.stages
    assert not [note for note in layout(config, engine).notes if "no class for" in note]


def test_its_keys_are_known_under_another_name_too(tmp_path: Path) -> None:
    """A checkpoint's params.json that somebody called config.json; and config.json comes first where both are there."""
    assert read(tmp_path, SMALL, "config.json")["num_hidden_layers"] == 4
    assert read(tmp_path, {**SMALL, "n_layers": 7})["num_hidden_layers"] == 4
    assert is_there(str(tmp_path))


def test_a_language_model_beside_others(tmp_path: Path) -> None:
    config = read(tmp_path, {**SMALL, "vision_encoder": {"hidden_size": 1024}})
    assert config["architectures"] == ["PixtralForConditionalGeneration"]
    assert layout(config, "vllm").manifest.stages == layout(LLAMA, "vllm").manifest.stages


@pytest.mark.parametrize(
    ("windows", "kinds"),
    [([None, 128], ["full", "sliding"] * 2), (128, ["sliding"] * 4), (None, None)],
)
def test_windows_are_a_pattern_that_repeats(tmp_path: Path, windows: Any, kinds: list[str] | None) -> None:
    found = read(tmp_path, {**SMALL, "sliding_window": windows}).get("layer_types")
    assert found == (None if kinds is None else [f"{kind}_attention" for kind in kinds])


@pytest.mark.parametrize("bad", ["4", None, 10**30, [4]])
def test_a_number_of_layers_that_is_none(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        layout(read(tmp_path, {**SMALL, "n_layers": bad, "sliding_window": [None, 128]}), "vllm")


def test_a_folder_without_either(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path)
