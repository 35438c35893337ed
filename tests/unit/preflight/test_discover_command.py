"""`pdctl discover` as its user sees it."""

import json
from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl.hosts import view
from pdctl.hosts.drawing import draw
from pdctl_topology import choose
from tests import machines


def test_a_host_without_devices_says_so_and_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "sys").mkdir()
    assert main(["discover", "--root", str(tmp_path)]) == 0
    assert "No RDMA device" in capsys.readouterr().out


@pytest.mark.code("PD0001")
@pytest.mark.parametrize("folder", ["", "deeper"])
def test_a_folder_that_is_no_root_is_no_host_without_devices(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A wrong path must not read as a result."""
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["discover", "--root", folder]) == 2
    assert "holds no sys/" in capsys.readouterr().err


@pytest.mark.code("PD0001")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--wait", "nan"], "--wait  found nan"),
        (["--wait", "-1"], "--wait  found -1"),
        (["--wait", "inf"], "--wait  found inf"),
        (["--environment", "/nope"], "--environment  /nope is no virtual environment"),
    ],
)
def test_options_of_preflight_that_can_mean_nothing(words: list[str], says: str, capsys: pytest.CaptureFixture[str]):
    assert main(["preflight", *words]) == 2
    assert says in capsys.readouterr().err


def test_json_holds_the_host_the_choice_and_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    machines.build("pod", tmp_path)
    assert main(["discover", "--root", str(tmp_path), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "pdctl.discover/v1"
    assert document["host"]["hcas"][0]["ports"][0]["gids"][0]["address"] == "10.0.8.250"
    assert "MC_GID_INDEX=7" in [item["text"] for item in document["settings"]]


def test_every_exclusion_and_its_reason_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    machines.build("odd-ones", tmp_path)
    assert main(["discover", "--root", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for item in choose(machines.read_host(machines.FolderTree(tmp_path))).excluded:
        assert f"{item.cause}: {item.reason}" in text


def test_a_folder_that_is_not_there_is_unusable_input(capsys: pytest.CaptureFixture[str]):
    assert main(["discover", "--root", "/no/such/folder"]) == 2
    assert "--root" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_table_fits_the_terminal(width: int, tmp_path: Path):
    host = machines.host("eight-gpus-bonds", tmp_path)
    lines = view.devices(host, choose(host), width)
    assert max(len(line) for line in lines) <= width
    assert lines[0].split()[:2] == ["HCA", "state"] or lines[0].split()[:2] == ["HCA", "port"]


def test_the_drawing_puts_each_gpu_and_its_hca_below_one_bridge(tmp_path: Path):
    host = machines.host("eleven-hcas", tmp_path)
    lines = draw(host, choose(host))
    bridge = next(at for at, line in enumerate(lines) if line.endswith("pci0000:14 0000:14:01.0"))
    assert "GPU 3" in lines[bridge + 1]
    assert "mlx5_4" in lines[bridge + 2]
    assert "✓ GPU 3" in lines[bridge + 2]
    assert sum("idle" in line for line in lines) == 3


@pytest.mark.parametrize(("name", "said"), [("dgx-spark", True), ("jetson-thor", True), ("grace-blackwell", False)])
def test_a_gpu_that_adapters_do_not_reach_is_named(
    name: str, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    root = machines.build(name, tmp_path)
    assert main(["discover", "--root", str(root)]) == 0
    assert ("no memory of its own" in capsys.readouterr().out) == said
