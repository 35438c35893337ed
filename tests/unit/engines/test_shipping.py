"""The core that `up` carries is the one the engines load, and says so when it is not."""

import sys
import tomllib
import zipfile
from importlib.metadata import Distribution
from io import BytesIO
from pathlib import Path

import pytest

from pdctl.engines import shipping
from pdctl.errors import GateError

ROOT = Path(__file__).parents[3]


def test_the_wheel_has_the_entry_points_of_the_distribution() -> None:
    """The wheel's are written down once more: an engine that finds none loads no plugin and says nothing."""
    project = tomllib.loads((ROOT / "transfer" / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(BytesIO(shipping.wheel())) as archive:
        name = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        points = archive.read(name).decode()
    for group, found in project["entry-points"].items():
        assert f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) in points


def test_the_wheel_is_the_same_bytes_every_time() -> None:
    assert shipping.wheel() == shipping.wheel()


def test_the_folder_is_a_distribution_that_the_engines_interpreter_finds(tmp_path: Path) -> None:
    folder = shipping.install(tmp_path)
    assert shipping.install(tmp_path) == folder
    found = Distribution.at(next(folder.glob("*.dist-info")))
    assert found.metadata["Name"] == "pdctl-transfer"
    assert shipping.verify(sys.executable, folder, "sglang.srt.plugins") == shipping.digest_of(shipping.contents())


@pytest.mark.code("PD3113")
def test_another_core_in_the_folder_is_named(tmp_path: Path) -> None:
    folder = shipping.install(tmp_path)
    (folder / "pdctl_transfer" / "__init__.py").write_text('__version__ = "0.0.1"\n')
    with pytest.raises(GateError, match="it would load sha256:") as caught:
        shipping.verify(sys.executable, folder, "sglang.srt.plugins")
    assert caught.value.code == "PD3113"


@pytest.mark.code("PD3113")
def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="/no/such/python"):
        shipping.verify("/no/such/python", shipping.install(tmp_path), "sglang.srt.plugins")
