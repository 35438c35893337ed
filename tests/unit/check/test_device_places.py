"""Two places of one file that name other devices: said before anything starts, at both lines."""

from pathlib import Path

import pytest

from pdctl.check.flag_rules.device_places import check_device_places
from pdctl.fleet import parse_fleet


def found(prefill: str, protocol: str = "rdma") -> list[tuple[str, str, list[str]]]:
    text = (
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: sglang\n"
        f"transfer: {{backend: nixl, protocol: {protocol}}}\nprefill: {prefill}\ndecode: {{}}\n"
    )
    findings = check_device_places(parse_fleet(text.encode(), Path("f.yaml")))
    return [(one.code, one.subject, [item.source for item in one.evidence]) for one in findings]


APART = "{env: {UCX_NET_DEVICES: 'mlx5_1:1'}, args: [--disaggregation-ib-device, mlx5_0]}"


@pytest.mark.code("PD2020")
def test_the_file_alone_tells() -> None:
    places = ["f.yaml:6 UCX_NET_DEVICES", "f.yaml:6 --disaggregation-ib-device"]
    assert found(APART) == [("PD2020", "prefill", places)]


def test_over_tcp_there_is_no_device_to_name() -> None:
    assert found(APART, "tcp") == []


def test_a_map_in_a_file_that_is_not_here_is_not_compared() -> None:
    params = 'SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS: \'{"device_list": "mlx5_0"}\''
    assert found(f"{{env: {{{params}}}, args: [--disaggregation-ib-device, /there/map.json]}}") == []
    assert found(f"{{env: {{{params}}}, args: [--disaggregation-ib-device, mlx5_1]}}") != []


def test_one_place_is_enough() -> None:
    assert found("{args: [--disaggregation-ib-device, mlx5_0]}") == []
    assert found("{env: {UCX_NET_DEVICES: 'mlx5_0:1'}, args: [--disaggregation-ib-device, mlx5_0]}") == []
