"""Engines that span nodes: what has to hold so that each rank runs somewhere, a fault of each kind and its twin."""

from pathlib import Path

import pytest

from pdctl.check import Options, check
from tests.unit.check.test_verdicts import MLA, flags, said, verdict

SGLANG, VLLM = "sglang mooncake", "vllm nixl"
HOSTS = "hosts: [a, b], nodes: 2"


def judged(tmp_path: Path, head: str, pool: str) -> dict[str, str]:
    """What is said of a fleet whose both sides are this pool, on hosts of their own."""
    return said(verdict(tmp_path, head, pool, pool.replace("[a,", "[c,").replace(" b]", " d]"), MLA))


@pytest.mark.code("PD1043")
@pytest.mark.parametrize(
    ("head", "sizes", "refused"),
    [
        (SGLANG, "attn_tp: 2, dp: 8, nodes: 2", False),
        (SGLANG, "attn_tp: 16, nodes: 3", True),
        (SGLANG, "attn_tp: 1, pp: 4, nodes: 2", False),
        (SGLANG, "attn_tp: 4, pp: 2, nodes: 4", False),
        # 12 ranks divide by 2, but a node takes whole stages: the third would run nowhere
        (SGLANG, "attn_tp: 4, pp: 3, nodes: 2", True),
        (SGLANG, "attn_tp: 2, pp: 2, nodes: 8", True),
        (SGLANG, f"attn_tp: 8, nodes: 2, {flags('--dp-size', '2')}", True),
        (SGLANG, f"{flags('--tp-size', '16', '--nnodes', '2')}", False),
        (SGLANG, f"{flags('--tp-size', '8', '--nnodes', '3')}", True),
        (SGLANG, f"attn_tp: 8, {flags('--nnodes', '$(NODES)')}", False),
        (VLLM, "attn_tp: 1, dp: 16, nodes: 2", False),
        (VLLM, "attn_tp: 8, dp: 2, nodes: 4", False),
        (VLLM, "attn_tp: 16, nodes: 2", False),
        (VLLM, "attn_tp: 1, dp: 8, nodes: 3", True),
        (VLLM, "attn_tp: 2, dp: 3, nodes: 2, dp_local: [2, 1]", False),
        (VLLM, "attn_tp: 2, dp: 3, nodes: 3, dp_local: [2, 1]", True),
        (VLLM, "attn_tp: 1, dp: 4, nodes: 2, load_balancing: external", True),
        (VLLM, "attn_tp: 1, dp: 4, nodes: 4, load_balancing: external", False),
    ],
)
def test_ranks_over_nodes(tmp_path: Path, head: str, sizes: str, refused: bool) -> None:
    """A placeholder of a cluster's manifest is no number, and of it no rule speaks."""
    assert judged(tmp_path, head, sizes) == ({"PD1043": "error"} if refused else {})


@pytest.mark.code("PD1044")
@pytest.mark.parametrize(
    ("head", "more", "refused"),
    [
        (SGLANG, "", False),
        (SGLANG, "dist_init_address: 10.0.0.1", False),
        (SGLANG, "dist_init_address: 127.0.0.1", True),
        (SGLANG, flags("--dist-init-addr", "127.0.0.1:5000"), True),
        (SGLANG, flags("--nccl-init-addr", "[::1]:5000"), True),
        (SGLANG, flags("--dist-init-addr", "10.0.0.1:5000"), False),
        (VLLM, flags("--master-addr", "localhost"), True),
        (VLLM, flags("--master-addr", "10.0.0.1"), False),
    ],
)
def test_where_nodes_meet(tmp_path: Path, head: str, more: str, refused: bool) -> None:
    """The first host by default; a loopback address is each node's own."""
    found = judged(tmp_path, head, f"attn_tp: 16, {HOSTS}, {more}")
    assert found == ({"PD1044": "error"} if refused else {})


def test_nodes_of_one_host_may_meet_on_loopback(tmp_path: Path) -> None:
    assert judged(tmp_path, SGLANG, "attn_tp: 2, nodes: 2, dist_init_address: 127.0.0.1") == {}


@pytest.mark.code("PD1045")
@pytest.mark.parametrize(
    ("head", "sizes", "refused"),
    [
        (SGLANG, "attn_tp: 8, ep: 8", False),
        (SGLANG, "attn_tp: 8, ep: 4", False),
        (SGLANG, "attn_tp: 8, ep: 3", True),
        (SGLANG, "attn_tp: 8, ep: 16", True),
        (SGLANG, f"attn_tp: 8, ep: 4, {flags('--moe-dp-size', '2')}", False),
        (SGLANG, f"attn_tp: 8, ep: 2, {flags('--moe-dp-size', '2')}", True),
        (SGLANG, f"attn_tp: 8, ep: 3, {flags('--moe-a2a-backend', 'deepep')}", False),
        (SGLANG, f"attn_tp: 8, {flags('--expert-parallel-size', '3')}", True),
        (VLLM, "attn_tp: 2, dp: 4, ep: 8", False),
        (VLLM, "attn_tp: 2, dp: 4, ep: 4", True),
        (VLLM, "attn_tp: 2, ep: 1", False),
    ],
)
def test_experts_over_ranks(tmp_path: Path, head: str, sizes: str, refused: bool) -> None:
    assert judged(tmp_path, head, sizes) == ({"PD1045": "error"} if refused else {})


@pytest.mark.code("PD0039")
@pytest.mark.parametrize(
    ("prefill", "decode", "warned"),
    [
        ("devices: [0]", "devices: [1]", False),
        ("devices: [0]", "devices: [0]", True),
        ("devices: [0], hosts: [a]", "devices: [0], hosts: [b]", False),
        ("devices: [0], hosts: [a]", "devices: [0], hosts: [b, a], nodes: 2, attn_tp: 2", True),
        ("devices: [0], replicas: 2", "devices: [1]", True),
        ("devices: [0], replicas: 2, network: own", "devices: [0], network: own", False),
    ],
)
def test_accelerators_of_two_engines(tmp_path: Path, prefill: str, decode: str, warned: bool) -> None:
    found = said(verdict(tmp_path, SGLANG, prefill, decode, MLA))
    assert found == ({"PD0039": "warning"} if warned else {})


@pytest.mark.code("PD1041")
@pytest.mark.parametrize(
    ("start", "size", "says"),
    [
        ("4", "8", None),
        ("2", "8", "low has ranks 0 to 3, high ranks 2 to 5"),
        ("4", "12", "low, high have 8 of 12 ranks; the others are waited for"),
    ],
)
def test_pools_that_are_parts_of_one_engine(tmp_path: Path, start: str, size: str, says: str | None) -> None:
    """Two pools that meet at one address share one set of data-parallel ranks; the first starts at 0 unsaid."""
    words = ["--data-parallel-size", size, "--data-parallel-size-local", "4", "--data-parallel-address", "10.0.0.1"]
    low = f"name: low, hosts: [low], {flags(*words)}"
    high = f"name: high, hosts: [high], {flags(*words, '--data-parallel-start-rank', start, '--headless')}"
    verdict(tmp_path, VLLM, "", "", MLA)
    file = tmp_path / "fleet.yaml"
    file.write_text(file.read_text().replace("prefill: {}", f"prefill: [{{{low}}}, {{{high}}}]"))
    report = check([file], Options())
    assert [one.message for one in report.findings if one.code == "PD1041"] == ([says] if says else [])


@pytest.mark.code("PD1041")
def test_ranks_of_nodes_must_be_all(tmp_path: Path) -> None:
    """`dp_local` is the other spelling."""
    right, wrong = "dp: 8, nodes: 2, dp_local: [6, 2]", "dp: 8, nodes: 2, dp_local: [4, 2]"
    assert judged(tmp_path, VLLM, right) == {}
    assert judged(tmp_path, VLLM, wrong) == {"PD1041": "error"}
