"""The UCX of a NIXL wheel: modules that are missing or do not load, and adapters that its libibverbs does not see."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.preflight import software
from pdctl.preflight.collect import read_software
from pdctl.preflight.facts import Distribution, Software, Ucx
from pdctl.preflight.rules import judge
from pdctl_transfer.rules.outcome import Held, Skipped
from tests import machines
from tests.unit.preflight.test_named_devices import fleet
from tests.unit.preflight.test_preflight_rules import SOFTWARE, facts, findings, snapshot

WHEEL: dict[str, tuple[str, ...]] = {"cma": (), "ib": (), "ib_mlx5": (), "cuda": ()}
NO_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
VERBS = "/usr/lib64/libibverbs/lib*-rdmav34.so"


def programs(modules: dict[str, tuple[str, ...]], folder: str = "nixl_cu12.libs/ucx", *more: Ucx) -> Software:
    nixl = (Distribution("nixl-cu12", "1.5.1", "index"),)
    found = (Ucx(folder, modules, VERBS, ("mlx5",)), *more)
    return msgspec.structs.replace(SOFTWARE, distributions=nixl, ucx=found)


@pytest.fixture
def gpus(tmp_path: Path) -> Path:
    machines.build("eight-gpus-eight-hcas", tmp_path)
    for device in (tmp_path / "sys/class/infiniband").iterdir():
        driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
        driver.mkdir(parents=True, exist_ok=True)
        (device.resolve() / "../../driver").symlink_to(os.path.relpath(driver, device.resolve().parent.parent))
    return tmp_path


def outcomes(root: Path, found: Software, want: Any = None, **transfer: Any) -> Any:
    want = want or fleet("vllm", "nixl", {}, transfer or None)
    return judge(snapshot((want, facts(root, nvidia_driver="open 570")), software=found))


@pytest.mark.code("PD2027")
@pytest.mark.parametrize(
    ("change", "transfer", "module", "state"),
    [
        ({"cuda": NO_DRIVER}, {}, "cuda", "libcuda.so.1"),
        ({"cuda": NO_DRIVER}, {"protocol": "tcp"}, "cuda", "libnvidia-ml.so.1"),
        ({"cuda": None}, {}, "cuda", "not in the wheel"),
        ({"ib": None}, {}, "ib", "not in the wheel"),
        ({"ib_mlx5": None}, {}, "ib_mlx5", "not in the wheel"),
    ],
)
def test_a_module_that_the_fleet_needs(gpus: Path, change: Any, transfer: Any, module: str, state: str):
    modules = {name: missing for name, missing in (WHEEL | change).items() if missing is not None}
    all_of_it = outcomes(gpus, programs(modules), **transfer)
    found = findings(all_of_it)
    assert set(found) == {"PD2027"}
    assert (found["PD2027"].params["module"], state in found["PD2027"].params["state"]) == (module, True)
    assert "ucx-modules" not in {item.rule for item in all_of_it if isinstance(item, Held)}


def test_a_wheel_in_order_holds(gpus: Path):
    found = outcomes(gpus, programs(WHEEL))
    assert findings(found) == {}
    assert {"ucx-modules", "verbs-provider"} <= {item.rule for item in found if isinstance(item, Held)}


def test_an_adapter_whose_driver_was_not_read_is_not_judged(tmp_path: Path):
    machines.build("eight-gpus-eight-hcas", tmp_path)
    found = outcomes(tmp_path, programs(WHEEL))
    assert findings(found) == {}
    assert "verbs-provider" not in {item.rule for item in found if isinstance(item, Held)}


def test_without_gpus_the_cuda_module_is_not_needed_and_not_held(tmp_path: Path):
    """It was said that every library is there, on a host without a driver."""
    found = outcomes(tmp_path, programs(WHEEL | {"cuda": NO_DRIVER}), protocol="tcp")
    assert findings(found) == {}
    [skipped] = [item for item in found if isinstance(item, Skipped) and item.rule == "ucx-modules"]
    assert "libcuda.so.1" in skipped.reason


def test_the_wheel_for_the_cuda_of_torch_is_the_one(gpus: Path):
    other = Ucx("nixl_cu13.libs/ucx", {"cma": ()}, VERBS, ())
    assert findings(outcomes(gpus, programs(WHEEL, "nixl_cu12.libs/ucx", other))) == {}
    cuda13 = msgspec.structs.replace(programs(WHEEL, "nixl_cu12.libs/ucx", other), torch_cuda="13.0")
    assert "PD2027" in findings(outcomes(gpus, cuda13))


@pytest.mark.parametrize("env", [{"UCX_MODULE_DIR": "/opt/ucx"}, {}])
def test_a_ucx_that_was_not_looked_at_is_skipped(gpus: Path, env: dict[str, str]):
    brought = programs(WHEEL) if env else msgspec.structs.replace(programs(WHEEL), ucx=())
    found = outcomes(gpus, brought, fleet("vllm", "nixl", {"env": env}))
    assert findings(found) == {}
    assert "ucx-modules" in {item.rule for item in found if isinstance(item, Skipped)}


@pytest.mark.code("PD2307")
def test_a_virtual_device_has_no_provider_where_the_wheel_looks(tmp_path: Path):
    gid = [1, "0000:0000:0000:0000:0000:ffff:0a4d:0101", "RoCE v2", "rv1"]
    row = {"name": "rxe1", "link_layer": "Ethernet", "gids": [gid]}
    machines.write({"addresses": ["10.77.1.1"], "hca": [row], "netdev": [{"name": "rv1"}]}, tmp_path)
    found = findings(outcomes(tmp_path, programs(WHEEL)))
    assert found["PD2307"].params["place"] == "/usr/lib64/libibverbs/librxe-rdmav34.so"
    env = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"}
    assert findings(outcomes(tmp_path, programs(WHEEL), fleet("vllm", "nixl", {"env": env}))) == {}


def test_the_wheel_that_is_installed_here_is_read_as_it_is():
    """NIXL's own wheel: modules by their file names, and where its libibverbs looks for providers."""
    [brought] = read_software("", sys.executable).ucx
    assert {"ib", "ib_mlx5", "cuda", "cma"} <= set(brought.modules)
    assert brought.modules["cma"] == ()
    assert brought.verbs == VERBS
    assert "mlx5" in brought.providers


def test_a_module_says_what_it_links_and_nothing_provides(tmp_path: Path):
    """The installed wheel's module for CMA, with one soname written over by another of its length."""
    [brought] = read_software("", sys.executable).ucx
    source = next(Path(brought.folder).glob("libuct_cma.so*"))
    folder = tmp_path / "nixl_cu99.libs" / "ucx"
    folder.mkdir(parents=True)
    (folder / "libuct_cuda.so.0.0.0").write_bytes(source.read_bytes().replace(b"libc.so.6\0", b"libc.so.9\0"))
    script = Path(software.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-"], input=script.encode(), capture_output=True, env={"PYTHONPATH": str(tmp_path)}
    )
    read = msgspec.json.decode(done.stdout, type=Software)
    [other] = [one for one in read.ucx if "cu99" in one.folder]
    assert "libc.so.9" in other.modules["cuda"]
