"""Devices by every place and spelling of a fleet file: which place counts, and what its reader makes of the names."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.fleet import parse_fleet
from pdctl.preflight.rules import judge
from pdctl.preflight.wants import Want, wants_of
from pdctl_transfer.rules.outcome import Held, Skipped
from tests import machines
from tests.unit.preflight.test_preflight_rules import facts, findings, snapshot

FLAG, CONFIG = "--disaggregation-ib-device", "--kv-transfer-config"


def fleet(engine: str, backend: str, prefill: dict[str, Any], transfer: dict[str, Any] | None = None) -> Want:
    """What the prefill pool asks of this host."""
    document = {
        "schema": "pdctl.fleet/v1",
        "name": "f",
        "model": {"path": "m"},
        "engine": engine,
        "transfer": {"backend": backend, "protocol": "rdma", **(transfer or {})},
        "prefill": prefill,
        "decode": {"hosts": ["h1"]},
    }
    return wants_of(parse_fleet(yaml.safe_dump(document).encode(), Path("f.yaml")), {})[0]


def mooncake(device_name: str, wrapped: bool = False) -> dict[str, Any]:
    config: dict[str, Any] = {
        "kv_connector": "MooncakeConnector",
        "kv_connector_extra_config": {"device_name": device_name},
    }
    if wrapped:
        inside = {"connectors": [{"kv_connector": "OffloadingConnector"}, config]}
        config = {"kv_connector": "MultiConnector", "kv_connector_extra_config": inside}
    return {"args": [CONFIG, json.dumps(config)]}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """Two RoCE adapters, a third with its port down, and their interfaces."""
    machines.build("disabled-port", tmp_path)
    return machines.write({"netdev": [{"name": "eth0"}, {"name": "eth1"}, {"name": "eth9", "state": "down"}]}, tmp_path)


UCX = "UCX_NET_DEVICES"
TRANSFER = {"devices": ["mlx5_0"]}


@pytest.mark.parametrize(
    ("want", "what", "names"),
    [
        (fleet("sglang", "mooncake", {"args": [FLAG, "mlx5_1, mlx5_0"]}, None), FLAG, ("mlx5_1", "mlx5_0")),
        (fleet("sglang", "mooncake", {"env": {UCX: "mlx5_1:1"}}, TRANSFER), "transfer.devices", ("mlx5_0",)),
        (fleet("sglang", "nixl", {"env": {UCX: "mlx5_1:1"}, "args": [FLAG, "mlx5_0"]}), UCX, ("mlx5_1:1",)),
        (fleet("sglang", "nixl", {"env": {UCX: ""}, "args": [FLAG, "mlx5_0"]}), FLAG, ("mlx5_0",)),
        (fleet("sglang", "nixl", {"env": {UCX: "all"}}, TRANSFER), "transfer.devices", ("mlx5_0",)),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_1:1"}}, TRANSFER), UCX, ("mlx5_1:1",)),
        (fleet("vllm", "nixl", {}, TRANSFER), "transfer.devices", ("mlx5_0:1",)),
        (fleet("vllm", "mooncake", mooncake("mlx5_1"), TRANSFER), "device_name", ("mlx5_1",)),
        (fleet("vllm", "mooncake", mooncake("mlx5_1", wrapped=True)), "device_name", ("mlx5_1",)),
        (
            fleet("vllm", "mooncake", {}, {"options": {"kv_connector_extra_config": {"device_name": "mlx5_77"}}}),
            "device_name",
            ("mlx5_77",),
        ),
        (fleet("vllm", "mooncake", {}, TRANSFER), "transfer.devices", ("mlx5_0",)),
        (fleet("reference", "mooncake", {}, TRANSFER), "transfer.devices", ("mlx5_0",)),
    ],
)
def test_the_place_that_counts_is_the_one_that_the_engine_follows(want: Want, what: str, names: tuple[str, ...]):
    assert (want.named[0].what, want.named[0].names) == (what, names)


@pytest.mark.code("PD2002")
@pytest.mark.code("PD2003")
@pytest.mark.code("PD2015")
@pytest.mark.code("PD2021")
@pytest.mark.parametrize(
    ("want", "code", "text"),
    [
        (fleet("vllm", "mooncake", mooncake("mlx5_77")), "PD2002", "mlx5_77"),
        (fleet("vllm", "mooncake", mooncake("mlx5_10")), "PD2003", "mlx5_10"),
        (fleet("vllm", "mooncake", mooncake("mlx5_0:1")), "PD2015", "mlx5_0:1"),
        (fleet("vllm", "mooncake", mooncake("mlx5_0, mlx5_1")), "PD2021", "a blank"),
        (fleet("vllm", "mooncake", mooncake("mlx5_*")), "PD2021", "a pattern"),
        (fleet("sglang", "mooncake", {}, {"devices": ["eth1"]}), "PD2021", "its adapter is mlx5_1"),
        (fleet("sglang", "nixl", {"args": [FLAG, "mlx5_0:1"]}), "PD2015", "mlx5_0:1"),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_0"}}), "PD2021", "UCX compares mlx5_0:1"),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_0:1,mlx5_0:2"}}), "PD2021", "no such port"),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_7:1"}}), "PD2002", "mlx5_7"),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_10:1"}}), "PD2003", "mlx5_10"),
        (fleet("vllm", "nixl", {"env": {UCX: "eth0"}}), "PD2021", "interfaces alone"),
        (fleet("vllm", "nixl", {"env": {UCX: "mlx5_0:1"}}, {"protocol": "tcp"}), "PD2021", "goes by interfaces"),
        (fleet("vllm", "nixl", {"env": {UCX: "eth7"}}, {"protocol": "tcp"}), "PD2021", "there are eth0, eth1"),
        (fleet("vllm", "nixl", {"env": {UCX: "eth9"}}, {"protocol": "tcp"}), "PD2021", "down"),
    ],
)
def test_a_name_that_its_reader_takes_for_nothing(host: Path, want: Want, code: str, text: str):
    found = findings(judge(snapshot((want, facts(host)))))
    assert set(found) == {code}
    assert text in str(found[code].params.values())


@pytest.mark.parametrize(
    "want",
    [
        fleet("sglang", "mooncake", {"args": [FLAG, " mlx5_0 , mlx5_1"]}),
        fleet("sglang", "nixl", {"args": [FLAG, '{"0": "mlx5_0", "1": "mlx5_1"}']}),
        fleet("vllm", "mooncake", mooncake("mlx5_0,mlx5_1")),
        fleet("vllm", "nixl", {"env": {UCX: "mlx5_0:1,mlx5_1:1"}}),
        fleet("vllm", "nixl", {"env": {UCX: "mlx5_[01]:1,eth0"}}),
        fleet("vllm", "nixl", {"env": {UCX: "^mlx5_10:1"}}),
        fleet("vllm", "nixl", {"env": {UCX: "eth*"}}, {"protocol": "tcp"}),
        fleet("vllm", "nixl", {}, {"devices": ["mlx5_0", "mlx5_1:1"]}),
    ],
)
def test_spellings_that_name_what_is_there(host: Path, want: Want):
    outcomes = judge(snapshot((want, facts(host))))
    assert findings(outcomes) == {}
    assert "device-spelling" in {item.rule for item in outcomes if isinstance(item, Held)}


def test_names_of_a_host_without_devices_are_not_held(tmp_path: Path):
    outcomes = judge(snapshot((fleet("vllm", "mooncake", mooncake("mlx5_0")), facts(tmp_path))))
    rules = {item.rule for item in outcomes if isinstance(item, Held | Skipped)}
    assert set(findings(outcomes)) == {"PD2001"}
    assert not rules & {"device-named", "device-fit", "device-port", "device-spelling"}


@pytest.mark.code("PD2012")
@pytest.mark.parametrize(
    ("prefill", "far"),
    [
        ({"attn_tp": 4, "devices": ["0", "1", "2", "3"], "args": [FLAG, "mlx5_0,mlx5_1,mlx5_2,mlx5_3"]}, None),
        (
            {"attn_tp": 2, "env": {"CUDA_VISIBLE_DEVICES": "6,7"}, "args": [FLAG, "mlx5_6,mlx5_7"]},
            None,
        ),
        ({"attn_tp": 2, "args": [FLAG, "mlx5_0,mlx5_1"]}, None),
        ({"attn_tp": 2, "args": ["--base-gpu-id", "6", FLAG, "mlx5_6,mlx5_7"]}, None),
        ({"attn_tp": 2, "devices": ["4", "5"], "args": [FLAG, '{"0": "mlx5_4", "1": "mlx5_5"}']}, None),
        (
            {"attn_tp": 4, "devices": ["0", "1", "2", "3"], "args": [FLAG, "mlx5_4,mlx5_5"]},
            "GPU 0, GPU 1, GPU 2, GPU 3",
        ),
        ({"attn_tp": 2, "devices": ["4", "5"], "args": [FLAG, '{"0": "mlx5_4", "1": "mlx5_4"}']}, "GPU 5"),
        ({"attn_tp": 8, "args": [FLAG, "mlx5_0,mlx5_1"]}, "GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7"),
    ],
)
def test_only_gpus_that_the_pool_takes_want_a_near_adapter(tmp_path: Path, prefill: dict[str, Any], far: str | None):
    """Two pools that share the eight GPUs of a host name four adapters each."""
    machines.build("eight-gpus-eight-hcas", tmp_path)
    seen = facts(tmp_path, nvidia_driver="open 570")
    found = findings(judge(snapshot((fleet("sglang", "mooncake", prefill), seen))))
    assert (found["PD2012"].params["gpus"] if "PD2012" in found else None) == far


def test_pods_are_given_gpus_that_nobody_told(tmp_path: Path):
    machines.build("eight-gpus-eight-hcas", tmp_path)
    pool = {"network": "own", "attn_tp": 2, "args": [FLAG, "mlx5_4,mlx5_5"]}
    outcomes = judge(snapshot((fleet("sglang", "mooncake", pool), facts(tmp_path, nvidia_driver="open 570"))))
    assert "PD2012" not in findings(outcomes)
    assert "nearness" in {item.rule for item in outcomes if isinstance(item, Skipped)}


PARAMS = "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS"


@pytest.mark.code("PD2020")
@pytest.mark.parametrize(
    ("want", "severity", "text"),
    [
        (fleet("sglang", "nixl", {"env": {UCX: "mlx5_1:1"}, "args": [FLAG, "mlx5_0"]}), None, f"follows {UCX}"),
        (
            fleet("sglang", "nixl", {"env": {UCX: "mlx5_0:1"}, "args": [FLAG, '{"0": "mlx5_0"}']}),
            None,
            f"follows {UCX}",
        ),
        (
            fleet("sglang", "nixl", {"env": {PARAMS: '{"device_list": "mlx5_1"}'}, "args": [FLAG, "mlx5_0"]}),
            "error",
            "refuses to start",
        ),
        (fleet("vllm", "mooncake", {"env": {"MC_TE_FILTERS": "mlx5_1"}}, TRANSFER), "error", "no device is left"),
        (
            fleet("vllm", "mooncake", {"env": {"MC_TE_FILTERS": "mlx5_1"}}, {"devices": ["mlx5_0", "mlx5_1"]}),
            None,
            "takes mlx5_1 alone",
        ),
    ],
)
def test_two_places_that_name_other_devices(host: Path, want: Want, severity: str | None, text: str):
    found = findings(judge(snapshot((want, facts(host)))))["PD2020"]
    assert (found.severity, text in found.params["outcome"]) == (severity, True)
    assert len(found.evidence) == 2


@pytest.mark.parametrize(
    "want",
    [
        fleet("sglang", "nixl", {"env": {UCX: "mlx5_0:1,mlx5_1:1"}, "args": [FLAG, "mlx5_1,mlx5_0"]}),
        fleet("sglang", "nixl", {"env": {PARAMS: '{"device_list": "mlx5_0"}'}, "args": [FLAG, "mlx5_0"]}),
        fleet("vllm", "mooncake", {"env": {"MC_TE_FILTERS": "mlx5_0, mlx5_1"}}, TRANSFER),
        fleet("sglang", "mooncake", {"env": {UCX: "mlx5_1:1"}}, TRANSFER),
    ],
)
def test_places_that_agree_or_that_nobody_reads(host: Path, want: Want):
    assert "PD2020" not in findings(judge(snapshot((want, facts(host)))))


@pytest.mark.code("PD2029")
@pytest.mark.parametrize(
    ("prefill", "reason"),
    [
        ({"attn_tp": 2, "args": [FLAG, '{"0": "mlx5_0"}']}, "no entry for GPU 1"),
        ({"attn_tp": 1, "args": ["--base-gpu-id", "3", FLAG, '{"0": "mlx5_0"}']}, "no entry for GPU 3"),
        ({"args": [FLAG, '{"gpu0": "mlx5_0"}']}, "no map from GPU numbers"),
        ({"args": [FLAG, '{"0": "mlx5_0"']}, "no JSON"),
        ({"args": [FLAG, "/nowhere/map.json"]}, "no such file"),
        ({"attn_tp": 2, "devices": ["4", "5"], "args": [FLAG, '{"0": "mlx5_0", "1": "mlx5_1"}']}, None),
    ],
)
def test_a_map_by_gpu_has_every_gpu_that_the_engine_takes(host: Path, prefill: dict[str, Any], reason: str | None):
    outcomes = judge(snapshot((fleet("sglang", "mooncake", prefill), facts(host))))
    found = findings(outcomes)
    assert ("PD2029" in found) == (reason is not None)
    assert reason is None or reason in found["PD2029"].params["reason"]


def test_a_map_that_lies_on_another_host_is_skipped(host: Path):
    far = fleet("sglang", "mooncake", {"hosts": ["h9"], "args": [FLAG, "/nowhere/map.json"]})
    outcomes = judge(snapshot((far, facts(host, "h9"))))
    assert "PD2029" not in findings(outcomes)
    assert "device-map" in {item.rule for item in outcomes if isinstance(item, Skipped)}
