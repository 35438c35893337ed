"""vllm-ascend: vLLM's words and layouts on NPU, its own connectors, refusals, releases and accelerators."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.check import Options, check_fleet
from pdctl.engines import adapter
from pdctl.engines.base import Instance
from pdctl.errors import InputError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.up.plan import make_plan
from pdctl.versions import image_version
from tests.unit.derive.models import QWEN3 as CONFIG

V1 = "MooncakeConnectorV1"


def fleet(tmp_path: Path, **changes: Any) -> LoadedFleet:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    base: dict[str, Any] = {
        "schema": "pdctl.fleet/v1", "name": "f", "model": {"path": str(tmp_path)}, "engine": "vllm-ascend",
        "transfer": {"backend": "mooncake"}, "prefill": {}, "decode": {},
    }  # fmt: skip
    return parse_fleet(json.dumps(base | changes, indent=1).encode(), tmp_path / "f.yaml")


def judged(loaded: LoadedFleet) -> dict[str, str]:
    report = check_fleet(loaded, Options())
    return {one.code: one.message for one in report.findings if one.severity == "error"}


def config_of(loaded: LoadedFleet, role: str) -> dict[str, Any]:
    (unit,) = [one.unit for one in make_plan(loaded).engines if one.unit.role == role]
    found: dict[str, Any] = json.loads(unit.argv[unit.argv.index("--kv-transfer-config") + 1])
    return found


def test_its_connector_is_told_both_sides_sizes_and_its_port(tmp_path: Path) -> None:
    """It asks ranks of the other side by its sizes, and asserts at its start where they are missing."""
    loaded = fleet(tmp_path, prefill={"attn_tp": 4, "dp": 2, "ports": {"kv_port": 36000}}, decode={"attn_tp": 2})
    sizes = {"prefill": {"dp_size": 2, "tp_size": 4}, "decode": {"dp_size": 1, "tp_size": 2}}
    assert config_of(loaded, "prefill") == {
        "kv_connector": V1, "kv_role": "kv_producer", "kv_port": "36000", "kv_connector_extra_config": sizes,
    }  # fmt: skip
    assert config_of(loaded, "decode")["kv_connector_extra_config"] == sizes
    assert judged(loaded) == {}


def test_options_name_another_of_its_connectors_and_add_to_what_it_is_told(tmp_path: Path) -> None:
    extra = {"use_ascend_direct": True}
    options = {"kv_connector": "MooncakeHybridConnector", "engine_id": "p", "kv_connector_extra_config": extra}
    found = config_of(fleet(tmp_path, transfer={"backend": "mooncake", "options": options}), "prefill")
    assert (found["kv_connector"], found["engine_id"]) == ("MooncakeHybridConnector", "p")
    assert found["kv_connector_extra_config"] == {"prefill": {"dp_size": 1, "tp_size": 1}, **_decode(), **extra}


def _decode() -> dict[str, Any]:
    return {"decode": {"dp_size": 1, "tp_size": 1}}


def test_accelerators_are_npus_and_the_router_hands_over(tmp_path: Path) -> None:
    plan = make_plan(fleet(tmp_path, prefill={"devices": ["3"]}))
    (prefill,) = plan.of("prefill")
    assert prefill.unit.env["ASCEND_RT_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in prefill.unit.env
    assert set(prefill.unit.ports) == {"http", "kv_port"}
    argv = plan.router.argv
    assert plan.router_kind.name == "vllm-router"
    assert argv[argv.index("--kv-connector") + 1] == "nixl", "its word for handing over what prefill answers"


def test_a_port_that_the_transfer_may_take_is_noted(tmp_path: Path) -> None:
    for port, noted in ((20100, True), (36000, False)):
        loaded = fleet(tmp_path, prefill={"ports": {"kv_port": port}})
        pool = loaded.fleet.prefill[0]
        made = Instance("prefill-0", pool, loaded.fleet, "m", "127.0.0.1", {"http": 1, "kv_port": port})
        assert any("20000 to 35999" in note for note in adapter("vllm-ascend").command(made).notes) == noted


@pytest.mark.code("PD3105")
def test_a_backend_that_it_has_no_connector_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no connector of vllm-ascend for nixl") as caught:
        make_plan(fleet(tmp_path, transfer={"backend": "nixl"}))
    assert caught.value.code == "PD3105"


@pytest.mark.code("PD1006")
@pytest.mark.parametrize(
    ("prefill", "decode", "connector", "says"),
    [
        (
            {"attn_tp": 1},
            {"attn_tp": 2},
            V1,
            "TP 1 on prefill below 2 on decode",
        ),
        ({"attn_tp": 1}, {"attn_tp": 2}, "MooncakeLayerwiseConnector", "at the first request"),
        ({"attn_tp": 2, "pp": 2}, {"attn_tp": 2, "pp": 2}, V1, "PP 2 on decode: it is 1"),
        (
            {"attn_tp": 2},
            {"attn_tp": 2, "args": ["-dcp", "2"]},
            "MooncakeHybridConnector",
            "context parallelism 2 on",
        ),
    ],
)
def test_what_its_connectors_refuse(tmp_path: Path, prefill: Any, decode: Any, connector: str, says: str) -> None:
    kind = "load-balance-proxy-layerwise-server" if "Layer" in connector else "load-balance-proxy-server"
    loaded = fleet(
        tmp_path, prefill=prefill, decode=decode, router={"kind": kind},
        transfer={"backend": "mooncake", "options": {"kv_connector": connector}},
    )  # fmt: skip
    assert says in judged(loaded).pop("PD1006", "")


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [({"attn_tp": 4}, {"attn_tp": 2}), ({"attn_tp": 2, "pp": 2}, {"attn_tp": 2}), ({"attn_tp": 2}, {"attn_tp": 2})],
)
def test_what_they_take_is_not_alarmed(tmp_path: Path, prefill: Any, decode: Any) -> None:
    """And what vLLM's own connectors compare or refuse is not asked of these."""
    report = check_fleet(fleet(tmp_path, prefill=prefill, decode=decode), Options())
    assert [one.verdict for one in report.pairs] == ["fits"]


@pytest.mark.code("PD1048")
@pytest.mark.parametrize(
    ("connector", "kind", "fits"),
    [
        (V1, "load_balance_proxy_server_example.py", True),
        (V1, "load_balance_proxy_layerwise_server_example.py", False),
        ("MooncakeLayerwiseConnector", "load_balance_proxy_layerwise_server_example.py", True),
        ("MooncakeLayerwiseConnector", "load_balance_proxy_server_example.py", False),
        ("MooncakeLayerwiseConnector", "vllm-router", False),
        (V1, "vllm-router", True),
    ],
)
def test_each_of_its_connectors_has_its_proxy(tmp_path: Path, connector: str, kind: str, fits: bool) -> None:
    transfer = {"backend": "mooncake", "options": {"kv_connector": connector}}
    assert ("PD1048" in judged(fleet(tmp_path, transfer=transfer, router={"kind": kind}))) != fits


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"prefill": {"tp_size": 2, "dp_size": 1}, "decode": {"tp_size": 2, "dp_size": 1}}, None),
        ({"prefill": {"tp_size": 4, "dp_size": 1}, "decode": {"tp_size": 2, "dp_size": 1}}, "told TP 4 of prefill"),
        ({"prefill": {"tp_size": 2, "dp_size": 1}}, "told no tp_size of decode"),
    ],
)
def test_sizes_that_its_connector_is_told_are_those_that_run(tmp_path: Path, told: Any, says: str | None) -> None:
    def config(role: str) -> list[str]:
        spoken = {"kv_connector": V1, "kv_role": role, "kv_port": "36000", "kv_connector_extra_config": told}
        return ["--kv-transfer-config", json.dumps(spoken)]

    pools = {
        "prefill": {"attn_tp": 2, "args": config("kv_producer")},
        "decode": {"attn_tp": 2, "args": config("kv_consumer")},
    }
    found = judged(fleet(tmp_path, **pools)).get("PD1006")
    assert found is None if says is None else says in str(found)


def test_its_releases_are_its_own(tmp_path: Path) -> None:
    assert image_version("vllm-ascend", "quay.io/ascend/vllm-ascend:v0.23.0-a3") == "0.23.0"
    assert image_version("vllm-ascend", "quay.io/ascend/vllm-ascend:v0.25.1rc1") is None
    report = check_fleet(fleet(tmp_path, engine_version="0.23.0"), Options())
    assert [one.name for one in report.judged_for] == ["vLLM-Ascend 0.23.0"]
