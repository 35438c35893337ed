"""What two hosts of a pair have in common: partitions, subnets, rails, routes; and what they should not have."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules import judge
from pdctl.preflight.snapshot import Snapshot
from pdctl.preflight.wants import Want
from pdctl_transfer.rules.outcome import Held, Outcome, Skipped
from tests import machines
from tests.unit.preflight.test_preflight_rules import facts, findings, snapshot, want

CODES = {"PD2022", "PD2023", "PD2306"}


def side(role: str, host: str, root: Path, devices: tuple[str, ...] = (), **changes: Any) -> tuple[Want, HostFacts]:
    one = want(devices, host=host, role=role, pool=role, **changes)
    return one, facts(root, host, nvidia_driver="open 570")


def between(outcomes: tuple[Outcome, ...]) -> set[str]:
    return set(findings(outcomes)) & CODES


def held(outcomes: tuple[Outcome, ...], rule: str) -> bool:
    return rule in {item.rule for item in outcomes if isinstance(item, Held)}


def infiniband(root: Path, **changes: Any) -> Path:
    gid = [0, "fe80:0000:0000:0000:a288:c203:007e:1d00", "IB/RoCE v1", ""]
    return machines.write({"hca": [{"name": "mlx5_0", "gids": [gid], **changes}]}, root)


@pytest.mark.code("PD2022")
@pytest.mark.parametrize(
    ("prefill", "decode", "apart"),
    [
        (("mlx5_0", "mlx5_1"), ("mlx5_6", "mlx5_7"), True),
        (("mlx5_0", "mlx5_1"), ("mlx5_1", "mlx5_2"), False),
        ((), ("mlx5_6", "mlx5_7"), False),
    ],
)
def test_named_rails_without_one_in_common(tmp_path: Path, prefill: Any, decode: Any, apart: bool):
    root = machines.build("eight-gpus-eight-hcas", tmp_path)
    outcomes = judge(snapshot(side("prefill", "a", root, prefill), side("decode", "b", root, decode)))
    assert between(outcomes) == ({"PD2022"} if apart else set())
    assert held(outcomes, "rails") is not apart
    if apart:
        found = findings(outcomes)["PD2022"]
        assert found.subject == "a → b"
        assert "mlx5_0, mlx5_1" in found.params["has"]
        assert "mlx5_6, mlx5_7" in found.params["other"]


def test_other_names_on_other_machines_are_not_compared(tmp_path: Path):
    """ib0 of one vendor's machine and mlx5_0 of another's may well be one rail."""
    alike = infiniband(tmp_path / "a", name="ib0")
    other = infiniband(tmp_path / "b")
    outcomes = judge(snapshot(side("prefill", "a", alike, ("ib0",)), side("decode", "b", other, ("mlx5_0",))))
    assert between(outcomes) == set()


@pytest.mark.code("PD2022")
@pytest.mark.parametrize(
    ("mine", "theirs", "reason"),
    [
        ({"pkey": "0x8001"}, {"pkey": "0x8002"}, "no partition"),
        ({"pkey": "0xffff"}, {"pkey": "0x8002"}, "no partition"),
        (
            {},
            {"gids": [[0, "fec0:0000:0000:0001:a288:c203:007e:1d00", "IB/RoCE v1", ""]]},
            "no subnet",
        ),
        ({"pkey": "0x8001"}, {"pkey": "0x8001"}, None),
    ],
)
def test_infiniband_without_a_partition_or_a_subnet_in_common(
    tmp_path: Path, mine: dict[str, Any], theirs: dict[str, Any], reason: str | None
):
    one, other = infiniband(tmp_path / "a", **mine), infiniband(tmp_path / "b", **theirs)
    found = findings(judge(snapshot(side("prefill", "a", one), side("decode", "b", other))))
    assert ("PD2022" in found) == (reason is not None)
    assert reason is None or reason in found["PD2022"].params["reason"]


def roce(root: Path, address: str, *routes: tuple[str, ...], tables: bool = False) -> Path:
    mapped = "".join(f"{int(part):02x}" for part in address.split("."))
    gid = [3, f"0000:0000:0000:0000:0000:ffff:{mapped[:4]}:{mapped[4:]}", "RoCE v2", "eth1"]
    machine = {
        "addresses": [address],
        "hca": [{"name": "mlx5_0", "link_layer": "Ethernet", "gids": [gid], "netdevs": ["eth1"]}],
        "netdev": [{"name": "eth0"}, {"name": "eth1"}],
        "routes": routes,
    }
    machines.write(machine, root)
    if tables:
        trie = root / "proc/net/fib_trie"
        trie.write_text(trie.read_text() + "Id 101:\n  +-- 10.0.0.0/8 2 0 2\n")
    return root


A, B = ("eth1", "10.60.0.16/28"), ("eth1", "10.60.0.32/28")
VIA_A, VIA_B = ("eth1", "10.60.0.0/24", "10.60.0.17"), ("eth1", "10.60.0.0/24", "10.60.0.33")


@pytest.mark.code("PD2023")
@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ((A,), (B,), "finding"),
        ((A, ("eth0", "0.0.0.0/0", "192.0.2.1")), (B, ("eth0", "0.0.0.0/0", "192.0.2.1")), "finding"),
        ((A, VIA_A), (B,), "finding"),
        ((A, VIA_A), (B, VIA_B), "held"),
        ((A, ("eth1", "0.0.0.0/0", "10.60.0.17")), (B, VIA_B), "held"),
        ((("eth1", "10.60.0.0/24"),), (("eth1", "10.60.0.0/24"),), "held"),
    ],
)
def test_roce_without_a_route(tmp_path: Path, mine: Any, theirs: Any, expected: str):
    """Both ways, and by the interface of the device itself: a default route of another is none."""
    one, other = roce(tmp_path / "a", "10.60.0.18", *mine), roce(tmp_path / "b", "10.60.0.34", *theirs)
    outcomes = judge(snapshot(side("prefill", "a", one), side("decode", "b", other)))
    assert between(outcomes) == ({"PD2023"} if expected == "finding" else set())
    assert held(outcomes, "routes") is (expected == "held")
    if expected == "finding":
        found = findings(outcomes)["PD2023"]
        assert found.params["has"] == "mlx5_0 10.60.0.18 on 10.60.0.16/28"
        assert found.subject == "a → b"


def test_routes_that_were_not_read_are_skipped(tmp_path: Path):
    """Tables chosen by rule, one for each rail, are common; a capture of an older pdctl has no routes."""
    by_rule, other = (
        roce(tmp_path / "a", "10.60.0.18", A, tables=True),
        roce(tmp_path / "b", "10.60.0.34", B, tables=True),
    )
    plain = snapshot(side("prefill", "a", by_rule), side("decode", "b", other))
    hosts = {}
    for name, seen in plain.hosts.items():
        assert isinstance(seen, HostFacts)
        netdevs = tuple(msgspec.structs.replace(dev, routes=None) for dev in seen.host.netdevs)
        hosts[name] = msgspec.structs.replace(seen, host=msgspec.structs.replace(seen.host, netdevs=netdevs))
    for one in (plain, Snapshot(plain.wants, hosts, {})):
        outcomes = judge(one)
        assert between(outcomes) == set()
        assert not held(outcomes, "routes")
        assert "routes" in {item.rule for item in outcomes if isinstance(item, Skipped)}


def test_one_cause_between_many_pairs_is_one_finding(tmp_path: Path):
    root = machines.build("eight-gpus-eight-hcas", tmp_path)
    sides = [side("prefill", f"p{n}", root, ("mlx5_0",)) for n in range(6)]
    sides += [side("decode", f"d{n}", root, ("mlx5_7",)) for n in range(6)]
    found = [item for item in judge(snapshot(*sides)) if getattr(item, "code", None) == "PD2022"]
    assert [item.subject for item in found] == ["p0…5 → d0…5"]


@pytest.mark.code("PD2306")
@pytest.mark.parametrize(
    ("backend", "env", "decode", "expected"),
    [
        ("nixl", {}, ["10.0.0.2", "172.17.0.1"], {"PD2306"}),
        ("nixl", {}, ["10.0.0.2", "172.17.0.9"], set()),
        ("mooncake", {}, ["10.0.0.2", "172.17.0.1"], set()),
    ],
)
def test_an_address_that_both_hosts_have(tmp_path: Path, backend: str, env: Any, decode: list[str], expected: set[str]):
    """docker0 has the same address everywhere, and UCX takes it for a way to the peer."""
    table = {"netdev": [{"name": "docker0"}, {"name": "eth0"}], "routes": [("docker0", "172.17.0.0/16")]}
    one = machines.write({"addresses": ["10.0.0.1", "172.17.0.1", "127.0.0.1"], **table}, tmp_path / "a")
    other = machines.write({"addresses": [*decode, "127.0.0.1"], **table}, tmp_path / "b")
    sides = [
        side(role, name, root, backend=backend, protocol="tcp", env=env)
        for role, name, root in (("prefill", "a", one), ("decode", "b", other))
    ]
    outcomes = judge(snapshot(*sides))
    assert between(outcomes) == expected
    if expected:
        assert findings(outcomes)["PD2306"].params["has"] == "docker0 172.17.0.1"


def test_an_interface_that_is_named_is_the_one(tmp_path: Path):
    root = machines.write({"addresses": ["172.17.0.1"], "netdev": [{"name": "eth0"}]}, tmp_path)
    sides = [side(role, role, root, ("eth0",), backend="nixl", protocol="tcp") for role in ("prefill", "decode")]
    named = [(msgspec.structs.replace(one, named=()), seen) for one, seen in sides]
    assert between(judge(snapshot(*named))) == {"PD2306"}
    assert between(judge(snapshot(*sides))) == set()


def test_one_machine_by_two_names_is_no_pair(tmp_path: Path):
    """`localhost` beside nothing: it has the same addresses as itself."""
    root = machines.write({"addresses": ["172.17.0.1"], "netdev": [{"name": "eth0"}]}, tmp_path)
    sides = [
        side(role, name, root, backend="nixl", protocol="tcp")
        for role, name in (("prefill", ""), ("decode", "localhost"))
    ]
    assert between(judge(snapshot(*sides))) == set()
