"""`pdctl plan`: the contract's lines, either order of the sides, and the exit statuses."""

import json
from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl_transfer.layout.read import encode_manifest, read_manifest
from pdctl_transfer.plan import make_plan
from tests.unit.layout.build import component, kv, replicated, single
from tests.unit.layout.examples import EXAMPLES

PREFILL, DECODE = str(EXAMPLES["hybrid-prefill-tp4"]), str(EXAMPLES["hybrid-decode-tp1"])


def test_ndjson_is_one_line_a_copy_and_covers_every_item(capsys):
    assert main(["plan", PREFILL, DECODE, "-o", "ndjson"]) == 0
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert list(lines[0]) == [
        *("kind", "layer", "tensor", "n", "src", "dst", "src_offset", "dst_offset"),
        *("length", "count", "src_stride", "dst_stride"),
    ]
    decode = read_manifest(DECODE)
    held = sum(entry.item_len for stage in decode.stages for part in stage.components for entry in part.entries)
    assert sum(line["length"] * line["count"] for line in lines) == held
    assert err == ""


def test_sides_are_told_apart_by_role_not_by_order(capsys):
    assert main(["plan", PREFILL, DECODE]) == 0
    one = capsys.readouterr().out
    assert main(["plan", DECODE, PREFILL]) == 0
    assert capsys.readouterr().out == one


def test_the_table_says_who_writes_to_whom_and_what_merging_gained(capsys):
    assert main(["plan", PREFILL, DECODE]) == 0
    out = capsys.readouterr().out
    plan = make_plan(read_manifest(PREFILL), read_manifest(DECODE))
    assert plan.digest in out
    for tp in range(4):
        assert f"pp0 tp{tp}  pp0 tp0" in out
    assert "qsa_compressed" in out
    assert f"{plan.stats.pieces} copies, merged into {plan.stats.copies}" in out


def test_json_says_what_the_table_says(capsys):
    assert main(["plan", PREFILL, DECODE, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = make_plan(read_manifest(PREFILL), read_manifest(DECODE))
    assert (document["schema"], document["digest"]) == ("pdctl.plan.summary/v1", plan.digest)
    assert document["bytes"] == plan.stats.bytes
    for part in ("ranks", "state"):
        assert sum(one["bytes"] for one in document[part]) == plan.stats.bytes
        assert sum(one["copies"] for one in document[part]) == document["copies"] == plan.stats.pieces


def test_a_fleet_file_holds_both_sides(capsys):
    assert main(["plan", "examples/tiny-hybrid.yaml"]) == 0
    assert "prefill reference TP 1" in capsys.readouterr().out


def test_what_is_not_planned_is_said(tmp_path, capsys):
    for side in (
        single("prefill", 1, kv([0])),
        single("decode", 1, kv([0]), component("swa", "page", replicated(1, "k"))),
    ):
        (tmp_path / f"{side.role}.json").write_bytes(encode_manifest(side))
    assert main(["plan", str(tmp_path / "prefill.json"), str(tmp_path / "decode.json")]) == 0
    assert "not planned: 1 decode entries without a counterpart (swa)" in capsys.readouterr().err


@pytest.mark.code("PD1004")
def test_a_side_that_would_not_start_says_why(tmp_path, capsys):
    """Three ranks for eight heads: the reason, not only that there is no layout."""
    fleet = tmp_path / "fleet.yaml"
    examples = Path(__file__).resolve().parents[3] / "examples"
    example = (examples / "llama-vllm-nixl.yaml").read_text(encoding="utf-8")
    fleet.write_text(example.replace("path: models", f"path: {examples}/models").replace("attn_tp: 8", "attn_tp: 3"))
    assert main(["plan", str(fleet)]) == 3
    assert "error PD1004  decode has no layout: decode: kv kv: 8 heads and attention TP 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (
            [PREFILL, str(EXAMPLES["hybrid-decode-tp4-page32"])],
            3,
            "error PD1001  page size 64 on prefill, 32 on decode",
        ),
        ([PREFILL, PREFILL], 2, "two manifests of one role"),
        ([PREFILL], 2, "only a prefill side"),
        (["absent.json", DECODE], 2, "absent.json"),
        ([__file__, DECODE], 2, "test_plan_command.py"),
        ([PREFILL, DECODE, "-o", "yaml"], 2, "'yaml' is not one of"),
    ],
)
def test_what_cannot_be_planned(arguments, status, said, capsys):
    assert main(["plan", *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "Traceback" not in err
