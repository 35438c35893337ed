"""Reading machines: real trees, captures of them, and what is missing or refused."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pdctl_topology import Capture, CaptureTree, FolderTree, capture, read_host
from pdctl_topology.gids import classify
from pdctl_topology.gpus import named
from pdctl_topology.verbs import VerbsDevice, VerbsPort, disagreements
from tests import machines

NAMES = sorted(path.stem for path in machines.DATA.glob("*.toml"))
SOFT_ROCE = machines.DATA / "soft-roce.capture.json"


def captured(root: Path) -> Capture:
    """By the script as a host runs it: on its own, in isolated mode, without this project."""
    done = subprocess.run([sys.executable, "-I", capture.__file__, str(root)], capture_output=True, check=True)
    return msgspec.json.decode(done.stdout, type=Capture)


@pytest.mark.parametrize("name", NAMES)
def test_a_capture_holds_all_that_is_read(name: str, tmp_path: Path):
    """A reader that asks for a file the capture script does not take would see less of a remote host."""
    root = machines.build(name, tmp_path)
    assert read_host(CaptureTree(captured(root))) == read_host(FolderTree(root))


def test_software_devices_without_pci_model_or_counters_are_devices():
    host = read_host(CaptureTree(msgspec.json.decode(SOFT_ROCE.read_bytes(), type=Capture)))
    assert [hca.name for hca in host.hcas] == ["rxe0", "rxe1", "rxe2"]
    rxe0 = host.hcas[0]
    assert (rxe0.pci, rxe0.model, rxe0.firmware, rxe0.numa, rxe0.netdevs) == (None, None, None, None, ("eth0",))
    assert [(gid.index, gid.address, gid.netdev) for gid in rxe0.ports[0].gids] == [
        (0, "fe80::5054:ff:fe77:1", "eth0"),
        (1, "10.77.0.1", "eth0"),
    ]
    assert rxe0.ports[0].counters["sent_pkts"] == 0


def test_an_empty_root_is_a_host_with_nothing(tmp_path: Path):
    host = read_host(FolderTree(tmp_path))
    assert (host.hcas, host.gpus, host.netdevs, host.numa) == ((), (), (), ())
    assert host.addresses is None, "unknown, not none"
    assert host.modules is None, "unknown, not none"


def test_data_counters_are_given_in_bytes_not_words(tmp_path: Path):
    machine = {"hca": [{"name": "mlx5_0", "counters": {"port_xmit_data": 250}}]}
    host = read_host(FolderTree(machines.write(machine, tmp_path)))
    assert host.hcas[0].ports[0].counters == {"port_xmit_bytes": 1000}


def test_an_adapter_behind_an_auxiliary_device_lies_where_its_pci_function_does(tmp_path: Path):
    function = "pci0000:10/0000:10:01.0/0000:11:00.0"
    machine = {
        "hca": [{"name": "ionic_0", "at": f"{function}/ionic.rdma.0"}],
        "gpu": [{"at": function, "class": "0x020000", "numa": 1}],
    }
    hca = read_host(FolderTree(machines.write(machine, tmp_path))).hcas[0]
    assert (hca.pci, hca.numa, len(hca.pci_path)) == ("0000:11:00.0", 1, 3)


def test_gid_entries_that_cannot_be_read_are_counted_not_taken_for_empty(tmp_path: Path):
    port = machines.host("odd-ones", tmp_path).hca("mlx5_0").ports[0]
    assert (port.gids, port.gid_slots, port.gid_faults) == ((), 8, 8)


def test_nvml_names_a_gpu_that_the_driver_does_not_and_changes_nothing_else(tmp_path: Path):
    gpus = machines.host("eight-gpus-bonds", tmp_path).gpus
    found = named(gpus, ((gpus[2].pci, "H200", "GPU-1"), ("0000:ff:00.0", "H200", "GPU-2")))
    assert [gpu.model for gpu in found] == [None, None, "H200", None, None, None, None, None]
    assert [gpu.pci for gpu in found] == [gpu.pci for gpu in gpus]


@pytest.mark.parametrize(
    ("text", "address", "scope"),
    [
        ("0000:0000:0000:0000:0000:ffff:0a00:08fc", "10.0.8.252", "v4-mapped"),
        ("fe80:0000:0000:0000:5054:00ff:fe77:0001", "fe80::5054:ff:fe77:1", "link-local"),
        ("fd93:16d3:59b6:012e:0690:81ff:fe3d:0001", "fd93:16d3:59b6:12e:690:81ff:fe3d:1", "unique-local"),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", "2001:db8::1", "global"),
        ("0000:0000:0000:0000:0000:0000:0000:0000", "::", "null"),
    ],
)
def test_scopes_of_gids(text: str, address: str, scope: str):
    assert classify(text) == (address, scope)


def test_what_is_no_gid_is_not_taken_for_one():
    assert classify("mlx5_0") is None


def test_mapped_addresses_and_networks_come_from_proc_on_this_machine():
    """Against the socket layer's own view: the loopback address is always there."""
    host = read_host(FolderTree("/"))
    assert host.addresses is not None
    assert "127.0.0.1" in host.addresses


def test_verbs_and_sysfs_that_agree_say_nothing_and_each_difference_is_named(tmp_path: Path):
    host = machines.host("pod", tmp_path)
    port = host.hcas[0].ports[0]
    gids = tuple((gid.index, gid.address) for gid in port.gids)
    same = VerbsDevice("mlx5_0", (VerbsPort(1, "ACTIVE", "Ethernet", 4096, gids),))
    assert disagreements(host, (same,)) == ()
    other = VerbsDevice("mlx5_0", (VerbsPort(1, "DOWN", "Ethernet", 4096, gids[1:]),))
    assert len(disagreements(host, (other,))) == 2
    assert disagreements(host, ()) == ("mlx5_0: in sysfs, not seen by libibverbs",)


def test_the_capture_script_needs_nothing_but_a_python(tmp_path: Path):
    source = Path(capture.__file__).read_text()
    done = subprocess.run([sys.executable, "-I", "-", str(tmp_path)], input=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"] == {}
