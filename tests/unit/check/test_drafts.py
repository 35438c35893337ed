"""Draft models whose config lies elsewhere: handed in, or what can be said without it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.check import Options, check
from pdctl.cli.app import main
from pdctl.report import Report
from tests.unit.check.test_verdicts import DENSE, KDA

OWN = {**DENSE, "num_hidden_layers": 1, "num_key_value_heads": 8}
LATENT = {
    "architectures": ["K3DSparkModel"],
    "model_type": "k3_dspark",
    "num_hidden_layers": 5,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}
DSPARK = "speculative: {method: dspark, model: org/Draft, num_speculative_tokens: 4}"
EAGLE3 = (
    "speculative: {algorithm: EAGLE3, draft_model_path: org/Draft, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4}"
)


def fleet(
    folder: Path, engine: str, prefill: str, decode: str, target: dict[str, Any], draft: dict[str, Any] | None = None
) -> Path:
    """A fleet file beside its model's config, and the draft's in a folder that the file does not name."""
    for name, config in (("model", target), ("draft", draft)):
        if config is not None:
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))
    file = folder / "fleet.yaml"
    head = f"schema: pdctl.fleet/v1\nname: f\nengine: {engine}\ntransfer: {{backend: nixl}}\nmodel: {{path: model}}\n"
    file.write_text(f"{head}prefill: {{{prefill}}}\ndecode: {{{decode}}}\n")
    return file


def said(report: Report) -> dict[str, str]:
    """Severity by code, of drafts and layouts."""
    return {one.code: one.severity for one in report.findings if one.code in ("PD1004", "PD1015", "PD1053")}


def judged(file: Path, draft: Path | None = None) -> Report:
    return check([file], Options(draft=draft))


@pytest.mark.code("PD1053")
@pytest.mark.parametrize(
    ("engine", "draft", "target"),
    [("vllm", DSPARK, KDA), ("sglang", EAGLE3, DENSE)],
)
def test_the_same_draft_on_both_sides_of_equal_sizes_needs_no_config(
    tmp_path: Path, engine: str, draft: str, target: dict[str, Any]
) -> None:
    """Its buffers are equal, whatever they are; the target's are judged."""
    report = judged(fleet(tmp_path, engine, f"attn_tp: 4, {draft}", f"attn_tp: 4, {draft}", target))
    assert (said(report), report.pairs[0].verdict) == ({"PD1053": "info"}, "fits")
    assert "item_lengths" in {one.rule for one in report.held}


@pytest.mark.code("PD1053")
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (f"attn_tp: 4, {EAGLE3}", f"attn_tp: 2, {EAGLE3}"),
        (f"attn_tp: 4, {EAGLE3}", f"attn_tp: 4, {EAGLE3.replace('org/Draft', 'org/Other')}"),
    ],
)
def test_an_unknown_draft_of_unequal_sizes_is_not_held(tmp_path: Path, prefill: str, decode: str) -> None:
    """Its heads may not divide as the target's do."""
    report = judged(fleet(tmp_path, "sglang", prefill, decode, DENSE))
    assert (said(report)["PD1053"], report.pairs[0].verdict, report.ok) == ("warning", "unknown", False)


@pytest.mark.code("PD1053")
def test_decode_alone_may_have_an_unknown_draft(tmp_path: Path) -> None:
    report = judged(fleet(tmp_path, "sglang", "", EAGLE3, DENSE))
    assert (said(report), report.pairs[0].verdict) == ({"PD1053": "info", "PD1015": "info"}, "fits")


def test_a_config_that_is_handed_in_is_judged(tmp_path: Path) -> None:
    """By a flag, or by a key of the fleet file: unequal sizes fit where the draft's heads divide."""
    file = fleet(tmp_path, "sglang", f"attn_tp: 4, {EAGLE3}", f"attn_tp: 2, {EAGLE3}", DENSE, OWN)
    by_flag = judged(file, tmp_path / "draft")
    file.write_text(file.read_text().replace("{path: model}", "{path: model, draft: draft}"))
    by_key = judged(file)
    for report in (by_flag, by_key):
        assert "PD1053" not in said(report)
        assert report.pairs[0].verdict == "fits"


@pytest.mark.code("PD1004")
def test_a_draft_whose_heads_do_not_divide_is_refused(tmp_path: Path) -> None:
    """What an unknown draft may hide."""
    narrow = {**OWN, "num_key_value_heads": 6, "num_attention_heads": 6}
    file = fleet(tmp_path, "sglang", f"attn_tp: 4, {EAGLE3}", f"attn_tp: 4, {EAGLE3}", DENSE, narrow)
    assert "PD1004" not in said(judged(file))
    assert "PD1004" in said(judged(file, tmp_path / "draft"))


def test_layout_takes_the_config_of_a_draft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = fleet(tmp_path, "vllm", DSPARK, DSPARK, KDA, LATENT)
    words = ["layout", str(file), "--role", "prefill", "-o", "json"]
    assert main(words) == 2
    assert "--draft DIR" in capsys.readouterr().err
    assert main([*words, "--draft", str(tmp_path / "draft")]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    latents = [
        entry["layer"] for part in stage["components"] for entry in part["entries"] if entry["tensor"] == "latent"
    ]
    assert latents == [3, 4, 5, 6, 7, 8]


@pytest.mark.code("PD1053")
def test_no_plan_is_made_without_the_drafts_buffers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = fleet(tmp_path, "sglang", EAGLE3, EAGLE3, DENSE)
    assert main(["plan", str(file)]) == 3
    assert "PD1053" in capsys.readouterr().err


def test_a_config_that_nobody_reads_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A draft without settings that name one."""
    file = fleet(tmp_path, "sglang", "", "", DENSE, OWN)
    assert any("no side's speculative settings name a draft" in note for note in judged(file, tmp_path / "draft").notes)
    assert not any("draft" in note for note in judged(file).notes)
    words = ["layout", "--engine", "sglang", "--role", "prefill", "--model", str(tmp_path / "model")]
    assert main([*words, "--draft", str(tmp_path / "draft")]) == 2
    assert "name no draft model" in capsys.readouterr().err
