"""Real verbs devices: three soft-RoCE ones in a virtual machine (`make test-rdma`). rxe1 and rxe2 reach each other.

Each mistake that operators make is named before anything starts, and again by a probe that makes it: what Mooncake
reports as success and moves over TCP is never taken for RDMA.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pdctl.preflight.collect import collect
from pdctl.preflight.probe.agent import counters
from pdctl.preflight.probe.blocks import Load
from pdctl.preflight.probe.run import probe_pairs
from pdctl.preflight.rules import judge
from pdctl.preflight.wants import Want, this_host
from pdctl_topology import FolderTree, Host, choose, read_host
from pdctl_topology.verbs import disagreements, read_verbs
from pdctl_transfer.fabric.mooncake import MooncakeFabric
from pdctl_transfer.rules.outcome import Finding, Held, Outcome
from pdctl_transfer.session import Options
from tests.unit.transfer_session.world import World, manifest

pytestmark = [pytest.mark.rdma, pytest.mark.timeout(400)]

DEVICES = ("rxe0", "rxe1", "rxe2")
ADDRESSES = {"prefill": "10.77.1.1", "decode": "10.77.1.2"}
BLOCK, COUNT = 16 << 10, 32
OFFSETS = [BLOCK * i for i in range(COUNT)]
LOAD = Load(OFFSETS[::-1], OFFSETS, [BLOCK] * COUNT, BLOCK * COUNT, BLOCK * COUNT, "small blocks")
SLOW = {"PD2304"}
"""One direction may be four times as fast as the other: the machine is emulated, and shares its processors."""
PATIENT = Options(handshake_s=60, bootstrap_s=120, waiting_s=120, transfer_s=200, silent_s=60, verify="full")
"""The machine is emulated."""
# the bundled libibverbs of NIXL knows no provider of this system; the system's own does
SYSTEM = "/usr/lib/x86_64-linux-gnu"
NIXL = {
    "LD_PRELOAD": " ".join(f"{SYSTEM}/{name}" for name in ("libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1")),
    "UCX_TLS": "rc_v,ud_v",
}


@pytest.fixture(scope="module")
def host() -> Host:
    if os.environ.get("IN_RDMA_LAB") != "1":
        pytest.fail("needs the virtual machine: run `make test-rdma`")
    return read_host(FolderTree("/"))


def want(pool: str, device: str, backend: str = "mooncake", **changes: object) -> Want:
    one = this_host(backend, "rdma", (device,), None)
    return msgspec.structs.replace(one, **{"pool": pool, "role": pool, "env": {}, **changes})


def probe(prefill: Want, decode: Want) -> list[Outcome]:
    found = probe_pairs([prefill], [decode], LOAD, ADDRESSES, lambda text: None)
    for outcome in found:
        print(outcome)
    return list(found)


def codes(outcomes: list[Outcome] | tuple[Outcome, ...]) -> set[str]:
    return {item.code for item in outcomes if isinstance(item, Finding)}


def before_start(*wants: Want) -> set[str]:
    """What preflight says of errors, without moving anything."""
    return codes(judge(collect(wants, software=False))) - {"PD2008"}


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def test_sysfs_and_verbs_agree_on_the_three_devices(host: Host):
    assert tuple(hca.name for hca in host.hcas) == DEVICES
    verbs = read_verbs()
    assert verbs is not None, "pyverbs does not import"
    assert tuple(device.name for device in verbs) == DEVICES
    assert disagreements(host, verbs) == ()


def test_the_choice_takes_the_routed_gid_of_the_pair(host: Host):
    found = choose(host)
    assert found.hcas == ("rxe1", "rxe2")
    assert [(item.gid.gid.index, item.gid.gid.address) for item in found.usable] == [(1, "10.77.1.1"), (1, "10.77.1.2")]


@pytest.mark.parametrize(("backend", "env"), [("mooncake", {}), ("nixl", NIXL)])
def test_state_moves_over_the_devices_and_the_kernel_counts_it(host: Host, backend: str, env: dict[str, str]):
    sides = [want(pool, device, backend, env=env) for pool, device in (("prefill", "rxe1"), ("decode", "rxe2"))]
    outcomes = probe(*sides)
    assert codes(outcomes) <= SLOW
    held = [item for item in outcomes if isinstance(item, Held)]
    assert len(held) == 2
    assert all("every byte checked; rdma" in item.saw and "sent_pkts +" in item.saw for item in held)


@pytest.mark.code("PD2002")
def test_a_device_that_does_not_exist(host: Host):
    sides = (want("prefill", "mlx5_9"), want("decode", "mlx5_9"))
    assert before_start(*sides) == {"PD2002"}
    assert codes(probe(*sides)) - SLOW == {"PD2303"}


@pytest.fixture
def rxe1_down() -> Iterator[None]:
    ip("link", "set", "rv1", "down")
    yield
    ip("link", "set", "rv1", "up")
    ip("route", "replace", "10.77.1.2", "dev", "rv1", "src", "10.77.1.1", "table", "101")
    macs = {name: Path(f"/sys/class/net/{name}/address").read_text().strip() for name in ("rv1", "rv2")}
    ip("neigh", "replace", "10.77.1.2", "lladdr", macs["rv2"], "dev", "rv1", "nud", "permanent")


@pytest.mark.code("PD2003")
@pytest.mark.usefixtures("rxe1_down")
def test_a_port_that_is_down(host: Host):
    sides = (want("prefill", "rxe1"), want("decode", "rxe1"))
    assert before_start(*sides) == {"PD2003"}
    outcomes = probe_pairs([sides[0]], [sides[1]], LOAD, dict.fromkeys(ADDRESSES, "127.0.0.1"), lambda text: None)
    assert codes(outcomes) - SLOW == {"PD2303"}


@pytest.mark.code("PD2004")
def test_a_gid_index_without_a_gid(host: Host):
    env = {"MC_GID_INDEX": "7"}
    sides = (want("prefill", "rxe1", env=env), want("decode", "rxe2", env=env))
    assert before_start(*sides) == {"PD2004"}
    outcomes = probe(*sides)
    assert codes(outcomes) == {"PD2305"}


@pytest.mark.code("PD2006")
def test_too_little_memory_may_be_locked(host: Host, tmp_path: Path):
    limited = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "prlimit", "--memlock=65536:65536"]
    command = [sys.executable, "-m", "pdctl", "preflight", "--protocol", "rdma", "--device", "rxe1", "-o", "short"]
    done = subprocess.run([*limited, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "PD2006" in done.stdout
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python"
    python.write_text(f'#!/bin/sh\nexec {" ".join(limited)} {sys.executable} "$@"\n')
    python.chmod(0o755)
    sides = [want(pool, dev, environment=str(tmp_path)) for pool, dev in (("prefill", "rxe1"), ("decode", "rxe2"))]
    outcomes = probe(*sides)
    assert codes(outcomes) == {"PD2305"}
    assert any("register" in str(item.params["reason"]) for item in outcomes if isinstance(item, Finding))


@pytest.fixture
def rv2_jumbo() -> Iterator[None]:
    """rxe2 takes MTU 4096, rxe1 keeps 1024."""
    ip("link", "set", "rv2", "mtu", "9000")
    yield
    ip("link", "set", "rv2", "mtu", "1500")


@pytest.mark.code("PD2007")
@pytest.mark.usefixtures("rv2_jumbo")
def test_mtus_that_differ(host: Host):
    sides = (want("prefill", "rxe1"), want("decode", "rxe2"))
    assert before_start(*sides) == {"PD2007"}
    verbs = {device.name: device.ports[0].active_mtu for device in read_verbs() or ()}
    assert (verbs["rxe1"], verbs["rxe2"]) == (1024, 4096)
    outcomes = probe(*sides)
    assert "PD2301" in codes(outcomes)
    assert not [item for item in outcomes if isinstance(item, Held)]


def test_one_side_on_tcp_fails_at_once_and_is_not_taken_for_rdma(host: Host):
    outcomes = probe(want("prefill", "rxe1"), want("decode", "mlx5_9"))
    assert codes(outcomes) & {"PD2301", "PD2303"}
    assert not [item for item in outcomes if isinstance(item, Held)]


@pytest.mark.parametrize("prefill_tp", [1, 2])
def test_a_hybrid_models_state_crosses_in_whole_sessions(host: Host, prefill_tp: int):
    """Handshake, plan, staging and confirmation over Mooncake's RDMA: KV pages, recurrent state, rings."""
    places = itertools.cycle([("10.77.1.1", "rxe1"), ("10.77.1.2", "rxe2")])

    def fabric() -> MooncakeFabric:
        address, device = next(places)
        return MooncakeFabric(address, "rdma", device)

    before = counters()
    sides = manifest("prefill", prefill_tp, scale=16), manifest("decode", 1, scale=16)
    with World(*sides, PATIENT, fabric) as world:
        senders, receivers, wrong = world.transfer()
        for handle in (*receivers, *senders):
            assert handle.wait(200) == "confirmed", handle.failure
        assert wrong() == []
        assert {one.observed_transport() for one in world.fabrics} == {"rdma"}
    after = counters()
    moved = {name: after[name] - before[name] for name in after if after[name] > before[name]}
    assert {"rxe1 sent_pkts", "rxe2 sent_pkts"} <= set(moved)
