"""Each rule of preflight: what makes it speak, and that it is silent, not satisfied, where it saw nothing."""

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.fleet import parse_fleet
from pdctl.preflight.facts import Distribution, HostFacts, Software, facts_of
from pdctl.preflight.rules import RULES, judge
from pdctl.preflight.rules.mtu import roce_mtu
from pdctl.preflight.snapshot import Snapshot, Unread
from pdctl.preflight.wants import RouterWant, Want, named_here, this_host, wants_of
from pdctl.report import make_report
from pdctl_topology import FolderTree, choose, read_host
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped
from tests import machines

WANT = msgspec.structs.replace(this_host("mooncake", "rdma", (), None), env={}, pool="prefill", role="prefill")
SOFTWARE = Software(
    "3.11.7",
    "/env/bin/python",
    "glibc 2.36",
    (Distribution("mooncake-transfer-engine", "0.3.13", "index"),),
    "12.8",
    {},
)


def facts(root: Path, name: str = "", **changes: Any) -> HostFacts:
    host = read_host(FolderTree(root))
    plain = facts_of(name, host, {}, shared_memory=8 << 30, own_addresses=("10.0.0.1",), clock_offset=(-0.1, 0.1))
    return msgspec.structs.replace(plain, **{"locked_bytes": math.inf, "listening": frozenset(), **changes})


def want(devices: tuple[str, ...] = (), **changes: Any) -> Want:
    one = msgspec.structs.replace(WANT, **changes)
    return msgspec.structs.replace(one, named=named_here(one.backend, devices)) if devices else one


def snapshot(*pairs: tuple[Want, HostFacts], software: Software | None = None, router: RouterWant | None = None):
    programs = {(one.host, one.python): software for one, _ in pairs} if software else {}
    return Snapshot(tuple(one for one, _ in pairs), {one.host: seen for one, seen in pairs}, programs, router)


def findings(outcomes: tuple[Outcome, ...]) -> dict[str, Finding]:
    make_report("preflight", outcomes)  # every code has its words
    return {item.code: item for item in outcomes if isinstance(item, Finding)}


def codes(snapshot: Snapshot) -> set[str]:
    return set(findings(judge(snapshot)))


@pytest.fixture
def roce(tmp_path: Path) -> Path:
    """Two RoCE adapters in order, a third with its port disabled."""
    return machines.build("disabled-port", tmp_path)


def test_a_host_in_order_has_no_finding(roce: Path):
    outcomes = judge(snapshot((want(devices=("mlx5_0", "mlx5_1")), facts(roce)), software=SOFTWARE))
    assert findings(outcomes) == {}
    assert {item.rule for item in outcomes if isinstance(item, Held)} >= {
        "devices",
        "device-named",
        "memlock",
        "packages",
    }


@pytest.mark.code("PD2001")
def test_rdma_without_a_device_is_an_error_and_tcp_without_one_is_not(tmp_path: Path):
    assert codes(snapshot((want(), facts(tmp_path)))) == {"PD2001"}
    assert codes(snapshot((want(protocol="tcp"), facts(tmp_path)))) == set()


@pytest.mark.code("PD2002")
def test_a_misspelt_device_is_named_with_those_that_exist(roce: Path):
    found = findings(judge(snapshot((want(devices=("mlx5_o",)), facts(roce)))))
    assert set(found) == {"PD2002"}
    assert found["PD2002"].params == {"device": "mlx5_o", "instead": "mlx5_0, mlx5_1, mlx5_10"}


@pytest.mark.code("PD2015")
def test_mooncake_takes_no_port_in_a_device_name_and_ucx_wants_one(roce: Path):
    assert codes(snapshot((want(devices=("mlx5_0:1",)), facts(roce)))) == {"PD2015"}
    assert codes(snapshot((want(devices=("mlx5_0:1",), backend="nixl"), facts(roce)))) == set()


@pytest.mark.parametrize(
    "value", ["mlx5_0,mlx5_1", '{"0":"mlx5_0","1":"mlx5_1,mlx5_0"}', '{"0": "mlx5_0", "1": "mlx5_1"}', "FILE"]
)
def test_every_form_of_sglangs_device_flag_is_read(value: str, tmp_path: Path):
    (tmp_path / "map.json").write_text('{"0": "mlx5_0", "1": "mlx5_1"}')
    value = value.replace("FILE", str(tmp_path / "map.json"))
    for args in (["--disaggregation-ib-device", value], [f"--disaggregation-ib-device={value}"]):
        fleet = {
            "schema": "pdctl.fleet/v1", "name": "f", "model": {"path": "m"}, "engine": "sglang",
            "prefill": {"args": args}, "decode": {"hosts": ["h1"]},
        }  # fmt: skip
        prefill, decode = wants_of(parse_fleet(json.dumps(fleet).encode(), Path("fleet.yaml")))
        assert prefill.devices == ("mlx5_0", "mlx5_1")
        assert (decode.devices, decode.host, decode.python) == ((), "h1", "python3")


def test_equal_hosts_hold_in_one_line(roce: Path):
    pairs = [(want(host=f"h{n}", devices=("mlx5_0",)), facts(roce, f"h{n}")) for n in range(64)]
    held = [item for item in judge(snapshot(*pairs)) if isinstance(item, Held)]
    assert len(held) < 15
    assert "memlock" in {item.rule for item in held}


@pytest.mark.code("PD2003")
def test_a_named_device_whose_port_is_down(roce: Path):
    found = findings(judge(snapshot((want(devices=("mlx5_0", "mlx5_10")), facts(roce)))))
    assert set(found) == {"PD2003"}
    assert found["PD2003"].params["device"] == "mlx5_10"


@pytest.mark.code("PD2004")
@pytest.mark.parametrize(
    ("index", "reason"), [("7", "empty"), ("1", "link-local"), ("2", "v1"), ("0", "v1")]
)  # fmt: skip
def test_a_gid_index_that_no_peer_can_answer_to(roce: Path, index: str, reason: str):
    found = findings(judge(snapshot((want(env={"MC_GID_INDEX": index}), facts(roce)))))
    assert reason in found["PD2004"].params["reason"]
    assert "index 3 is" in found["PD2004"].params["reason"]


def test_a_gid_index_that_serves_holds(roce: Path):
    assert codes(snapshot((want(env={"MC_GID_INDEX": "3"}, devices=("mlx5_0",)), facts(roce)))) == set()


@pytest.mark.code("PD2014")
def test_ports_with_ipv6_only_need_an_index(tmp_path: Path):
    machines.build("ipv6-only", tmp_path)
    found = findings(judge(snapshot((want(), facts(tmp_path)))))
    assert found["PD2014"].params["index"] == 1
    assert codes(snapshot((want(env={"MC_GID_INDEX": "1"}), facts(tmp_path)))) == set()


@pytest.mark.code("PD2005")
@pytest.mark.parametrize("device", ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "cxgb4_0"])
def test_a_named_device_that_cannot_carry_a_transfer(tmp_path: Path, device: str):
    machines.build("odd-ones", tmp_path)
    assert "PD2005" in codes(snapshot((want(devices=(device,)), facts(tmp_path))))


@pytest.mark.code("PD2008")
@pytest.mark.parametrize("device", ["mlx5_4", "mlx5_6"])
def test_a_named_device_that_is_not_meant_for_transfers(tmp_path: Path, device: str):
    machines.build("odd-ones", tmp_path)
    assert codes(snapshot((want(devices=(device,)), facts(tmp_path)))) == {"PD2008"}


@pytest.mark.code("PD2009")
def test_with_no_device_named_the_engine_would_take_the_ethernet_port_too(tmp_path: Path):
    machines.build("mixed-layers", tmp_path)
    found = findings(judge(snapshot((want(), facts(tmp_path)))))
    assert "mlx5_1" in found["PD2009"].params["devices"]


@pytest.mark.code("PD2006")
@pytest.mark.parametrize(("limit", "severity"), [(64 << 20, "error"), (512 << 30, "warning")])
def test_locked_memory(roce: Path, limit: int, severity: str):
    found = findings(judge(snapshot((want(devices=("mlx5_0",)), facts(roce, locked_bytes=float(limit))))))
    assert found["PD2006"].severity == severity


def test_an_unknown_limit_is_not_taken_for_none(roce: Path):
    outcomes = judge(snapshot((want(devices=("mlx5_0",)), facts(roce, locked_bytes=None))))
    assert "memlock" in {item.rule for item in outcomes if isinstance(item, Skipped)}
    assert "memlock" not in {item.rule for item in outcomes if isinstance(item, Held)}


@pytest.mark.code("PD2007")
def test_mtus_of_two_hosts(tmp_path: Path):
    def side(name: str, mtu: int) -> tuple[Want, HostFacts]:
        gid = [3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth1"]
        row = {"name": "mlx5_0", "link_layer": "Ethernet", "gids": [gid]}
        machine = {"addresses": ["10.0.0.1"], "hca": [row], "netdev": [{"name": "eth1", "mtu": mtu}]}
        return want(host=name), facts(machines.write(machine, tmp_path / name), name)

    assert "PD2007" not in codes(snapshot(side("a", 4200), side("b", 9000)))
    found = findings(judge(snapshot(side("c", 4200), side("d", 1500), side("e", 9000))))
    assert found["PD2007"].subject == "d"
    assert found["PD2007"].params["mtu"] == 1024


def test_roce_mtus_are_those_of_the_kernel():
    """Measured: interface 1500 gives 1024; the others by the kernel's header allowance."""
    assert [roce_mtu(size) for size in (1500, 2200, 4200, 9000)] == [1024, 2048, 4096, 4096]


@pytest.mark.code("PD2010")
def test_gpus_without_a_way_for_adapters_to_their_memory(tmp_path: Path):
    machines.build("eight-gpus-eight-hcas", tmp_path)
    seen = facts(tmp_path, nvidia_driver="550.54.15")
    with_modules = [
        msgspec.structs.replace(seen, host=msgspec.structs.replace(seen.host, modules=frozenset(names)))
        for names in ((), ("nvidia_peermem",))
    ]
    assert [codes(snapshot((want(), one))) for one in with_modules] == [{"PD2010"}, set()]
    unknown = judge(snapshot((want(), seen)))
    assert "peer-memory" in {item.rule for item in unknown if isinstance(item, Skipped)}
    opened = msgspec.structs.replace(with_modules[0], nvidia_driver="open 570.124.06")
    assert codes(snapshot((want(), opened))) == set()


@pytest.mark.code("PD2012")
def test_names_in_order_of_their_numbers_leave_gpus_far(tmp_path: Path):
    machines.build("eleven-hcas", tmp_path)
    seen = facts(tmp_path, nvidia_driver="open 570")
    by_number = want(devices=tuple(f"mlx5_{n}" for n in range(8)))
    assert findings(judge(snapshot((by_number, seen))))["PD2012"].params["gpus"] == "GPU 7"
    assert "PD2012" not in codes(snapshot((want(devices=choose(seen.host).hcas), seen)))


@pytest.mark.code("PD2013")
def test_infiniband_on_one_side_and_ethernet_on_the_other(tmp_path: Path):
    machines.build("eight-gpus-eight-hcas", tmp_path / "a")
    machines.build("disabled-port", tmp_path / "b")
    sides = ((want(host=name), facts(tmp_path / name, name, nvidia_driver="open 570")) for name in ("a", "b"))
    assert "PD2013" in codes(snapshot(*sides))


@pytest.mark.code("PD2101")
def test_libcudart_12_missing_beside_a_torch_for_cuda_13(tmp_path: Path):
    missing = {"mooncake/engine.so": ("libcudart.so.12",), "nixl_cu12/_bindings.so": ("libother.so",)}
    programs = msgspec.structs.replace(SOFTWARE, torch_cuda="13.0", missing=missing)
    found = findings(judge(snapshot((want(protocol="tcp"), facts(tmp_path)), software=programs)))
    assert set(found) == {"PD2101"}
    assert found["PD2101"].params["library"] == "libcudart.so.12"
    assert "CUDA 13.0" in found["PD2101"].evidence[0].text


@pytest.mark.code("PD2102")
@pytest.mark.code("PD2103")
@pytest.mark.code("PD2104")
def test_flavours_of_mooncake(tmp_path: Path):
    machines.build("eight-gpus-eight-hcas", tmp_path / "gpus")
    cuda, plain = (Distribution(f"mooncake-transfer-engine{end}", "0.3.13", "index") for end in ("", "-non-cuda"))

    def found(root: Path, *dists: Distribution) -> set[str]:
        programs = msgspec.structs.replace(SOFTWARE, distributions=dists)
        return codes(snapshot((want(protocol="tcp"), facts(root)), software=programs))

    assert found(tmp_path / "none", cuda, plain) == {"PD2102"}
    assert found(tmp_path / "none") == {"PD2103"}
    assert found(tmp_path / "gpus", plain) == {"PD2104"}
    assert found(tmp_path / "gpus", cuda) == set()


@pytest.mark.code("PD2105")
def test_versions_of_two_hosts(tmp_path: Path):
    pairs = [(want(host=name, protocol="tcp", env={}), facts(tmp_path, name)) for name in ("a", "b")]
    other = msgspec.structs.replace(
        SOFTWARE, distributions=(Distribution("mooncake-transfer-engine", "0.3.9", "index"),)
    )
    both = msgspec.structs.replace(
        snapshot(*pairs), software={("a", pairs[0][0].python): SOFTWARE, ("b", pairs[1][0].python): other}
    )
    assert codes(both) == {"PD2105"}


@pytest.mark.code("PD2107")
@pytest.mark.parametrize("args", [("--pd-disaggregation", "true"), ("--pd-disaggregation=true",)])
def test_a_switch_of_the_router_with_a_value(tmp_path: Path, args: tuple[str, ...]):
    one = (want(protocol="tcp"), facts(tmp_path))
    assert codes(snapshot(one, router=RouterWant("smg", args, "fleet.yaml:9", None))) == {"PD2107"}
    fine = RouterWant("smg", ("--pd-disaggregation", "--policy", "random"), "fleet.yaml:9", None)
    assert codes(snapshot(one, router=fine)) == set()


@pytest.mark.code("PD2201")
def test_a_host_that_does_not_answer_is_an_error_and_holds_nothing():
    seen = Snapshot((want(host="h9"),), {"h9": Unread("h9: it does not answer", "look at the cable")}, {})
    outcomes = judge(seen)
    assert set(findings(outcomes)) == {"PD2201"}
    assert not [item for item in outcomes if isinstance(item, Held) and item.rule not in ("variables",)]


@pytest.mark.code("PD2202")
@pytest.mark.code("PD2206")
def test_ports(tmp_path: Path):
    seen = facts(tmp_path, listening=frozenset({8998}), port_range=(32768, 60999))
    taken = want(protocol="tcp", ports=(("bootstrap", 8998), ("http", 31000)))
    assert codes(snapshot((taken, seen))) == {"PD2202"}
    assert codes(snapshot((want(protocol="tcp", ports=(("http", 40000),)), seen))) == {"PD2206"}
    router = RouterWant("smg", (), "fleet.yaml:9", 8998)
    assert codes(snapshot((want(protocol="tcp"), seen), router=router)) == {"PD2202"}
    assert codes(msgspec.structs.replace(snapshot((taken, seen)), own_ports=frozenset({8998}))) == set(), "it is up"
    unknown = judge(snapshot((taken, msgspec.structs.replace(seen, listening=None))))
    assert "ports" in {item.rule for item in unknown if isinstance(item, Skipped)}


@pytest.mark.code("PD2203")
@pytest.mark.code("PD2204")
def test_addresses_that_are_told_to_peers(tmp_path: Path):
    machines.write({"addresses": ["10.0.0.1"]}, tmp_path)

    def fleet(address: str | None, own: tuple[str, ...] = ("10.0.0.1",)) -> set[str]:
        given = (Evidence("fleet.yaml:9", address),) if address else ()
        near = want(host="a", protocol="tcp", addresses=given)
        far = want(host="b", protocol="tcp", addresses=(Evidence("fleet.yaml:9", "10.0.0.1"),))
        return codes(snapshot((near, facts(tmp_path, "a", own_addresses=own)), (far, facts(tmp_path, "b"))))

    assert fleet("127.0.0.1") == {"PD2203"}
    assert fleet("10.0.0.2") == {"PD2203"}
    assert fleet("10.0.0.1") == set()
    assert fleet(None, ("127.0.1.1",)) == {"PD2204"}
    assert fleet(None, ()) == set(), "unknown: skipped"
    assert fleet(None) == set()


@pytest.mark.code("PD2205")
def test_a_clock_is_off_only_if_that_is_certain(tmp_path: Path):
    def at(low: float, high: float) -> set[str]:
        return codes(snapshot((want(host="a", protocol="tcp"), facts(tmp_path, "a", clock_offset=(low, high)))))

    assert at(61.0, 61.4) == {"PD2205"}
    assert at(-61.4, -61.0) == {"PD2205"}
    assert at(-1.0, 4.0) == set()


@pytest.mark.code("PD2207")
def test_a_small_dev_shm(tmp_path: Path):
    assert codes(snapshot((want(protocol="tcp"), facts(tmp_path, shared_memory=64 << 20)))) == {"PD2207"}


@pytest.mark.code("PD2208")
@pytest.mark.parametrize(
    ("backend", "protocol", "env", "found"),
    [
        ("mooncake", "rdma", {"MC_FORCE_TCP": "1"}, {"PD2208"}),
        ("mooncake", "tcp", {"MC_FORCE_TCP": "1"}, set()),
        ("mooncake", "rdma", {"MC_FORCE_TCP": "0"}, set()),
        ("mooncake", "tcp", {"MC_LOG_DIR": "/tmp"}, {"PD2208"}),
        ("nixl", "rdma", {"UCX_TLS": "tcp,self"}, {"PD2208"}),
        ("nixl", "rdma", {"UCX_TLS": "rc_v,ud_v"}, set()),
        ("nixl", "rdma", {"UCX_TLS": "srd,cuda_copy"}, set()),
        ("nixl", "rdma", {"UCX_TLS": "^gga"}, set()),
        ("nixl", "rdma", {"UCX_MODULES": "^ib"}, {"PD2208"}),
        ("nixl", "rdma", {"UCX_MODULES": "cuda"}, {"PD2208"}),
        ("nixl", "rdma", {"UCX_MODULES": "^rocm"}, set()),
        ("nixl", "tcp", {"UCX_MODULES": "^ib"}, set()),
    ],
)
def test_variables_that_undo_the_configuration(roce: Path, backend: str, protocol: str, env: dict, found: set):
    one = want(backend=backend, protocol=protocol, env=env, devices=("mlx5_0",))
    assert codes(snapshot((one, facts(roce)))) == found


@pytest.mark.code("PD2209")
def test_a_variable_on_one_role_only(tmp_path: Path):
    def fleet(decode: dict[str, str]) -> set[str]:
        prefill = want(protocol="tcp", env={"MC_TE_METRIC": "1"})
        other = want(protocol="tcp", role="decode", pool="decode", env=decode)
        return codes(snapshot((prefill, facts(tmp_path)), (other, facts(tmp_path))))

    assert fleet({}) == {"PD2209"}
    assert fleet({"MC_TE_METRIC": "1", "MC_GID_INDEX": "3"}) == set()


def test_the_same_finding_of_two_pools_on_one_host_is_one(tmp_path: Path):
    pairs = [(want(pool=name, role=name), facts(tmp_path)) for name in ("prefill", "decode")]
    report = make_report("preflight", judge(snapshot(*pairs)))
    assert [(finding.code, finding.subject) for finding in report.findings] == [("PD2001", "this host")]


def test_every_rule_is_listed():
    here = Path(machines.__file__).parent.parent / "pdctl/preflight/rules"
    files = {path.stem for path in here.glob("*.py")} - {"__init__", "common"}
    assert files == {rule.__module__.rsplit(".", 1)[-1] for rule in RULES}
