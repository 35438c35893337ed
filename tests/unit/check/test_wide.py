"""`--prove` and `plan` of engines that span nodes, of models that are served so: small in bytes, wide in ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.check import Options, check
from pdctl.cli.app import main
from tests.unit.check.test_verdicts import KDA, MLA, verdict
from tests.unit.derive.models import V4

#: Sizes as they are published: prefill and decode of two to four nodes each, attention DP, pipelines.
WIDE = [
    pytest.param(MLA, "attn_tp: 2, dp: 8, nodes: 2", "attn_tp: 1, dp: 32, ep: 32, nodes: 4", id="deepseek-v3"),
    pytest.param(MLA, "attn_tp: 8, pp: 2, nodes: 2", "attn_tp: 1, dp: 16, nodes: 2", id="deepseek-v3-stages"),
    pytest.param(KDA, "attn_tp: 16, nodes: 2", "attn_tp: 8, dp: 2, ep: 16, nodes: 2", id="kimi-k3"),
    pytest.param(KDA, "attn_tp: 1, pp: 2, nodes: 2", "attn_tp: 8, nodes: 2", id="kimi-k3-stages"),
    pytest.param(V4, "attn_tp: 1, dp: 8, nodes: 2", "attn_tp: 1, dp: 16, nodes: 4", id="deepseek-v4"),
]


@pytest.mark.parametrize(("config", "prefill", "decode"), WIDE)
def test_every_byte_of_every_node_is_written_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], prefill: str, decode: str
) -> None:
    """Ranks are those of the whole engine: its nodes change no layout and so no plan."""
    verdict(tmp_path, "sglang mooncake", prefill, decode, config)
    file = tmp_path / "fleet.yaml"
    report = check([file], Options(prove=True))
    assert [one.code for one in report.findings if one.severity == "error"] == []
    assert any(one.rule == "prove" and "each written once" in one.saw for one in report.held)
    assert main(["plan", str(file), "-o", "json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    words = (text.partition(", nodes")[0] for text in (prefill, decode.replace(", ep: 32", "").replace(", ep: 16", "")))
    verdict(tmp_path, "sglang mooncake", *words, config)
    assert main(["plan", str(file), "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == planned
