"""`check --live` of a fleet that somebody else started: what its engines say of themselves, beside its file."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.engines.builtin_models import CONFIGS
from tests.unit.engines.outside import at, sglang, vllm

Report = tuple[int, dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["tiny-llama"]))
    return str(folder)


def check(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    prefill: str,
    decode: str,
    pool: str = "",
    engine: str = "sglang",
    more: tuple[str, ...] = (),
) -> Report:
    path = tmp_path / "f.yaml"
    path.write_text(
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-llama}\n"
        f"engine: {engine}\nlauncher: {{kind: external}}\n"
        f"prefill: {{urls: ['{prefill}']{pool}}}\ndecode: {{urls: ['{decode}']{pool}}}\n"
    )
    status = main(["check", "--live", str(path), "-o", "json", *more])
    report = json.loads(capsys.readouterr().out)
    return status, report | {"findings": [one for one in report["findings"] if not one["code"].startswith("PD20")]}


def test_engines_that_are_what_the_file_says(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a plugin the layout follows from the arguments that they resolved; they state their release."""
    with at(sglang("prefill", model=model)) as p, at(sglang("decode", model=model)) as d:
        status, report = check(capsys, tmp_path, p.url, d.url, ", page_size: 32")
    assert (status, report["findings"], [pair["verdict"] for pair in report["pairs"]]) == (0, [], ["fits"])
    assert [(one["stated"], one["by"]) for one in report["judged_for"]] == [("0.5.23", "the engine itself")]


@pytest.mark.code("PD3122")
@pytest.mark.parametrize(
    ("running", "pool", "status", "says"),
    [
        (
            {"version": "0.5.22"},
            ", engine_version: 0.5.23",
            0,
            ("warning", "version is 0.5.22 by the engine, 0.5.23 by"),
        ),
        (
            {"served_model_name": "other"},
            "",
            3,
            ("error", "model is other by the engine, tiny-llama by the fleet file"),
        ),
    ],
)
def test_another_version_or_model_is_said_with_both_sources(
    running: dict[str, Any],
    pool: str,
    status: int,
    says: tuple[str, str],
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with at(sglang("prefill", model=model, **running)) as p, at(sglang("decode", model=model)) as d:
        found, report = check(capsys, tmp_path, p.url, d.url, f", page_size: 32{pool}")
        place = p.url
    finding = next(one for one in report["findings"] if one["code"] == "PD3122")
    assert (found, finding["subject"], finding["severity"]) == (status, "prefill-0", says[0])
    assert says[1] in finding["message"]
    assert [one["source"].partition(":")[0] for one in finding["evidence"]] == [str(tmp_path / "f.yaml"), "http"]
    assert finding["evidence"][1]["source"] == place


def test_sizes_are_told_also_where_the_layout_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a plugin nor the model's config is there: the pair is unknown, never a pass."""
    with at(sglang("prefill", page_size=64, tp_size=2)) as p, at(sglang("decode")) as d:
        status, report = check(capsys, tmp_path, p.url, d.url, ", page_size: 32, attn_tp: 1")
    said = {one["message"].partition(" by the engine")[0] for one in report["findings"] if one["code"] == "PD3122"}
    assert (status, [pair["verdict"] for pair in report["pairs"]]) == (3, ["unknown"])
    assert said == {"prefill-0: page_size is 64", "prefill-0: tp is 2"}


def test_a_model_that_lies_elsewhere_for_the_engine_is_taken_from_the_folder_that_is_given(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a container, or by a name of a hub: no pass without it."""
    with at(sglang("prefill", model="org/tiny-llama")) as p, at(sglang("decode", model="/m/tiny-llama")) as d:
        without, _ = check(capsys, tmp_path, p.url, d.url, ", page_size: 32")
        status, report = check(capsys, tmp_path, p.url, d.url, ", page_size: 32", more=("--model", model))
    assert (without, status, report["findings"]) == (3, 0, [])


@pytest.mark.code("PD1046")
def test_a_release_that_is_unknown_is_said_of_what_runs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with at(sglang("prefill", model=model, version="0.9.9")) as p, at(sglang("decode", model=model)) as d:
        _, report = check(capsys, tmp_path, p.url, d.url, ", page_size: 32")
    found = [(one["subject"], one["message"]) for one in report["findings"] if one["code"] == "PD1046"]
    assert [subject for subject, _ in found] == ["prefill-0"]
    assert "SGLang 0.9.9 is outside of the releases" in found[0][1]


def test_vllm_without_a_plugin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with at(vllm()) as p, at(vllm(takes_kv=False)) as d:
        status, report = check(capsys, tmp_path, p.url, d.url, ", page_size: 64", "vllm")
    said = [one["message"].partition(" by the engine")[0] for one in report["findings"] if one["code"] == "PD3122"]
    assert (status, [pair["verdict"] for pair in report["pairs"]]) == (3, ["unknown"])
    assert sorted(said) == [
        "decode-0: page_size is 128",
        "decode-0: role is one that takes no KV",
        "prefill-0: page_size is 128",
    ]
