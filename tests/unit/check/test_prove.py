"""`--prove`: byte by byte, and what flat slices would corrupt."""

import json
from pathlib import Path

import pytest

from pdctl.check import proofs
from pdctl.cli.app import main
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plan import Fault, Proof, RankId
from tests.unit.rules.build import mamba, manifest

CONTRACTS = Path(__file__).resolve().parents[2] / "data" / "contracts"
HYBRID = (str(CONTRACTS / "hybrid-prefill-tp4.json"), str(CONTRACTS / "hybrid-decode-tp1.json"))


@pytest.mark.code("PD1016")
def test_flat_slices_are_shown_in_channels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many channels of how many would be wrong, and how far a copy runs past the item."""
    for role, tp in (("prefill", 2), ("decode", 1)):
        made = manifest(role, tp, parts=(mamba(tp, range(4), flat=True, groups=1),))
        (tmp_path / f"{role}.json").write_bytes(encode_manifest(made))
    args = [str(tmp_path / "prefill.json"), str(tmp_path / "decode.json"), "--prove", "-o", "json"]
    assert main(["check", *args]) == 3
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["code"] == "PD1016"
    shown = finding["evidence"][-1]["text"]
    assert "channels wrong in each of 4 layers" in shown
    assert "past the item, into the next request's slot" in shown


@pytest.mark.code("PD1024")
def test_a_plan_that_is_not_proved_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A planner's fault never passes as a pair that fits: component, layer, tensor, rank and bytes are named."""
    fault = Fault("never", "mamba", 3, "conv", 0, RankId(0, 1), 0, 64, 64)
    monkeypatch.setattr(proofs, "prove", lambda *_: Proof((fault,), 1, 64))
    assert main(["check", *HYBRID, "--prove", "-o", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [finding["code"] for finding in report["findings"]] == ["PD1024"]
    assert "mamba layer 3 conv of decode pp 0 tp 1: 64 bytes never" in report["findings"][0]["message"]
    assert report["pairs"][0]["verdict"] == "refused"


def test_a_proof_says_what_it_followed(capsys: pytest.CaptureFixture[str]) -> None:
    """A pass is a number of bytes, not a word."""
    assert main(["check", *HYBRID, "--prove", "-o", "json"]) == 0
    held = {rule["rule"]: rule["saw"] for rule in json.loads(capsys.readouterr().out)["held"]}
    assert "each written once, from its right place" in held["prove"]
