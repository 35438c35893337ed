"""`pdctl preflight --probe` with real agents, a real fabric and real layouts, on one machine."""

from pathlib import Path

import pytest

from pdctl.fleet import parse_fleet
from pdctl.preflight.probe.run import probe_fleet
from pdctl.preflight.run import fleet_snapshot
from pdctl_transfer.rules.outcome import Finding, Held

pytestmark = pytest.mark.integration

FLEET = """
schema: pdctl.fleet/v1
name: probed
model: {path: builtin:tiny-hybrid}
engine: reference
transfer: {backend: BACKEND, protocol: PROTOCOL}
prefill: {attn_tp: 2, page_size: 16}
decode: {attn_tp: 1, page_size: 16}
"""


def probe(backend: str, protocol: str):
    text = FLEET.replace("BACKEND", backend).replace("PROTOCOL", protocol)
    loaded = parse_fleet(text.encode(), Path("fleet.yaml"))
    notes: list[str] = []
    return probe_fleet(loaded, fleet_snapshot(loaded), notes.append), notes


def codes(outcomes) -> set[str]:
    """Without the one on speed: the machine that runs tests may be busy."""
    return {item.code for item in outcomes if isinstance(item, Finding)} - {"PD2304"}


@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
def test_both_directions_move_and_are_checked(backend: str):
    outcomes, notes = probe(backend, "tcp")
    assert [item.subject for item in outcomes if isinstance(item, Held)] == ["prefill → decode", "decode → prefill"]
    assert all("every byte checked; tcp" in item.saw for item in outcomes if isinstance(item, Held))
    assert codes(outcomes) == set()
    assert notes == ["probe: round 1 of 1, 1 pairs"]


@pytest.mark.code("PD2303")
def test_rdma_without_a_device_moves_over_tcp_and_is_found_out():
    """What Mooncake reports as success."""
    outcomes, _ = probe("mooncake", "rdma")
    assert codes(outcomes) == {"PD2303"}
    found = [item for item in outcomes if isinstance(item, Finding)]
    texts = [evidence.text for item in found for evidence in item.evidence]
    assert "asked for rdma, seen tcp" in texts
    assert any("Found 0 HCAs" in text for text in texts)


@pytest.mark.code("PD2305")
def test_a_python_without_the_library_says_which(tmp_path: Path):
    text = FLEET.replace("BACKEND", "mooncake").replace("PROTOCOL", "tcp")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text('#!/bin/sh\nexec python3 -S -I "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    loaded = parse_fleet(text.replace("page_size: 16}", f"page_size: 16, environment: {tmp_path}}}").encode(), tmp_path)
    outcomes = probe_fleet(loaded, fleet_snapshot(loaded), lambda text: None)
    assert codes(outcomes) == {"PD2305"}
