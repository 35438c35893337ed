"""DeepSeek-V4 on SGLang: pairs that fit at any TP, and states of compressors that the two sides size differently."""

from pathlib import Path
from typing import Any

import pytest

from pdctl.check import Options, check
from tests.unit.check.test_verdicts import error, flags, said, verdict
from tests.unit.derive.models import V4

EAGLE = 'speculative: {"algorithm": "EAGLE", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}'
ONLINE = 'env: {SGLANG_OPT_USE_ONLINE_COMPRESS: "1"}'


@pytest.mark.parametrize("backend", ["mooncake", "nixl", "mori"])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("attn_tp: 8", "attn_tp: 8"),
        ("attn_tp: 4", "attn_tp: 8"),
        ("attn_tp: 8", "attn_tp: 1"),
        (f"attn_tp: 4, {EAGLE}", f"attn_tp: 8, {EAGLE}"),
        (ONLINE, ONLINE),
        ("attn_tp: 1, dp: 8", "attn_tp: 4"),
    ],
)
def test_replicated_state_fits_at_any_tp(tmp_path: Path, backend: str, prefill: str, decode: str) -> None:
    """Latents, windows and states are whole on every rank: any ratio that divides."""
    report = verdict(tmp_path, f"sglang {backend}", prefill, decode, V4)
    assert (said(report), report.pairs[0].verdict) == ({}, "fits")
    assert {"compressors", "item_lengths", "unequal_tp"} <= {one.rule for one in report.held}


@pytest.mark.code("PD1051")
@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("attn_tp: 4", f"attn_tp: 4, {EAGLE}"),
        (ONLINE, "attn_tp: 1"),
        ("attn_tp: 1", 'env: {SGLANG_DSV4_COMPRESS_STATE_DTYPE: "bfloat16"}'),
    ],
)
def test_states_of_another_size_land_in_other_requests(tmp_path: Path, backend: str, prefill: str, decode: str) -> None:
    """Said once, and not again as another code; decode's draft itself would be no fault."""
    report = verdict(tmp_path, f"sglang {backend}", prefill, decode, V4)
    assert (said(report), report.pairs[0].verdict) == (error("PD1051"), "refused")


@pytest.mark.code("PD1051")
def test_the_finding_names_the_side_that_speculates(tmp_path: Path) -> None:
    report = verdict(tmp_path, "sglang nixl", "attn_tp: 4", f"attn_tp: 4, {EAGLE}", V4)
    (finding,) = [one for one in report.findings if one.code == "PD1051"]
    assert finding.message == "swa state, swa index_state: 65536 bytes an item on prefill, 131072 on decode"
    assert any("speculative: " in one.text and "EAGLE" in one.text for one in finding.evidence)


@pytest.mark.code("PD1006")
@pytest.mark.parametrize(
    ("backend", "decode", "want"),
    [
        ("mooncake", "pp: 1", {}),
        ("nixl", "pp: 1", {}),
        ("mori", "pp: 2", {}),
        ("mori", "pp: 1", error("PD1006")),
    ],
)
def test_stages_pair_by_ratio_but_over_mori(tmp_path: Path, backend: str, decode: str, want: dict[str, str]) -> None:
    """Mooncake and NIXL cut decode's buffers by ratio for each prefill stage; mori pairs by position."""
    assert said(verdict(tmp_path, f"sglang {backend}", "pp: 2", decode, V4)) == want


@pytest.mark.code("PD1003")
def test_rows_of_another_layout(tmp_path: Path) -> None:
    """The engine compares the word; what follows from it is not said again."""
    verdict(tmp_path, "sglang mooncake", "attn_tp: 1", 'env: {SGLANG_DSV4_KV_LAYOUT: "v4"}', V4)
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text().replace("attn_tp: 1", 'env: {SGLANG_DSV4_KV_LAYOUT: "v41"}'))
    assert said(check([file], Options(platform="sm100"))) == error("PD1003")


@pytest.mark.code("PD1027")
def test_context_lengths_are_judged_beside_a_known_layout(tmp_path: Path) -> None:
    for also in ({"max_position_embeddings": 131072}, {}):  # what the config leaves out its class says
        short = f"attn_tp: 8, {flags('--context-length', '9217')}"
        report = verdict(tmp_path, "sglang mori", short, "attn_tp: 8", {**V4, **also})
        assert said(report) == error("PD1027")


def test_the_plan_of_every_kind_is_proved(tmp_path: Path) -> None:
    """Every byte of latents, windows, rings and the draft's window is written once, from its right place."""
    sides = f"attn_tp: 4, pp: 2, {EAGLE}", f"attn_tp: 8, {EAGLE}"
    verdict(tmp_path, "sglang mooncake", *sides, V4)
    report = check([tmp_path / "fleet.yaml"], Options(prove=True))
    held: dict[str, Any] = {one.rule: one.saw for one in report.held}
    assert "each written once, from its right place" in held["prove"]
    assert report.pairs[0].verdict == "fits"
