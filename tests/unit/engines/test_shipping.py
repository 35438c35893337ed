"""The core that `up` carries is the one the engines load, and says so when it is not."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest

from pdctl.engines import shipping
from pdctl.engines.builtin_models import materialise
from pdctl.errors import GateError
from pdctl.python import code, environment

ROOT = Path(__file__).parents[3]
GROUP = "sglang.srt.plugins"
STRANGER = 65534


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_wheel_has_the_entry_points_of_the_distribution() -> None:
    """The wheel's are written down once more: an engine that finds none loads no plugin and says nothing."""
    project = tomllib.loads((ROOT / "transfer" / "pyproject.toml").read_text())["project"]
    with zipfile.ZipFile(BytesIO(shipping.wheel())) as archive:
        name = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        points = archive.read(name).decode()
    for group, found in project["entry-points"].items():
        assert f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items()) in points


def test_the_wheel_is_the_same_bytes_every_time_and_holds_sources_only() -> None:
    first = shipping.wheel()
    shipping.wheel.cache_clear()
    assert shipping.wheel() == first
    with zipfile.ZipFile(BytesIO(first)) as archive:
        modules = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert modules
    assert {Path(name).suffix for name in modules} == {".py", ".typed"}


_WALK = """\
import importlib, pkgutil, pdctl_transfer as core
for found in pkgutil.walk_packages(core.__path__, "pdctl_transfer."):
    if found.name.startswith(("pdctl_transfer.plugins", "pdctl_transfer.rules")):
        importlib.import_module(found.name)
print("\\n".join(m.__file__ for name, m in sys.modules.items() if name.startswith("pdctl_transfer")))
"""


def test_the_engines_interpreter_runs_every_module_of_it_from_the_one_file() -> None:
    path = shipping.install()
    assert shipping.verify(sys.executable, path, GROUP) == shipping.digest()
    env = environment(os.environ, {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": ""})
    done = subprocess.run(code(sys.executable, _WALK), env=env, capture_output=True, text=True, check=True)
    files = done.stdout.split()
    assert len(files) > 50
    assert [file for file in files if not file.startswith(f"{path}/pdctl_transfer/")] == []
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no byte code, nothing beside it"


def test_only_its_owner_can_read_or_write_what_is_installed_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        path = shipping.install()
    finally:
        os.umask(before)
    folders = (path.parent, path.parent.parent)
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
    assert path.stat().st_mode & 0o777 == 0o600


def _changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncated(path: Path) -> None:
    os.truncate(path, 1000)


def _appended(path: Path) -> None:
    """A module more, which the wheel did not have."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("sitecustomize.py", "raise SystemExit(7)")


def _linked(path: Path) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def _given_away(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER)


def _opened(path: Path) -> None:
    path.chmod(0o666)


def _removed(path: Path) -> None:
    path.unlink()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


HARMS = (_changed, _truncated, _appended, _linked, _given_away, _opened, _removed, _fifo)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.lstrip("_"))
def test_a_core_that_is_not_as_we_left_it_is_put_back(harm: Callable[[Path], None]) -> None:
    path = shipping.install()
    harm(path)
    assert shipping.install() == path
    about = path.lstat()
    assert (about.st_uid, about.st_mode & 0o177777) == (os.geteuid(), 0o100600)
    assert shipping.verify(sys.executable, path, GROUP) == shipping.digest()


@pytest.mark.code("PD3113")
@pytest.mark.parametrize("harm", [_changed, _truncated, _appended, _removed], ids=lambda harm: harm.__name__)
def test_a_core_that_changes_after_it_was_installed_is_refused(harm: Callable[[Path], None]) -> None:
    path = shipping.install()
    harm(path)
    with pytest.raises(GateError) as caught:
        shipping.verify(sys.executable, path, GROUP)
    assert caught.value.code == "PD3113"


def _byte_code(folder: Path, trap: str) -> None:
    """What the folder beside would offer: byte code of the size and time of a source, a library, a hook."""
    package = folder / "pdctl_transfer" / "__pycache__"
    package.mkdir(parents=True)
    for name in ("__init__", "guard", "stages"):
        (package / f"{name}.{sys.implementation.cache_tag}.pyc").write_bytes(b"hostile")
    (folder / "pdctl_transfer" / "stages.abi3.so").write_bytes(b"hostile")
    (folder / "pdctl_transfer" / "__init__.py").write_text(trap)
    for name in ("sitecustomize", "usercustomize", "numpy", "hashlib"):
        (folder / f"{name}.py").write_text(trap)


def test_files_beside_the_core_are_never_run(tmp_path: Path) -> None:
    path = shipping.install()
    ran = tmp_path / "ran"
    _byte_code(path.parent, f"open({str(ran)!r}, 'w')\nraise SystemExit(7)\n")
    assert shipping.install() == path
    assert shipping.verify(sys.executable, path, GROUP) == shipping.digest()
    assert not ran.exists()


@pytest.mark.code("PD3113")
def test_another_core_that_comes_first_is_named(tmp_path: Path) -> None:
    """As when the environment's own start-up files load one."""
    early = tmp_path / "early"
    (early / "pdctl_transfer").mkdir(parents=True)
    (early / "pdctl_transfer" / "__init__.py").write_text("")
    (tmp_path / "python").write_text(f'#!/bin/sh\nPYTHONPATH={early}:$PYTHONPATH exec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(GateError, match=r"it would load another pdctl_transfer: .*early") as caught:
        shipping.verify(str(tmp_path / "python"), shipping.install(), GROUP)
    assert caught.value.code == "PD3113"


@pytest.mark.code("PD3113")
def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(GateError, match="/no/such/python"):
        shipping.verify("/no/such/python", shipping.install(), GROUP)


@pytest.mark.code("PD3113")
def test_an_engine_without_the_plugins_group_is_named() -> None:
    with pytest.raises(GateError, match="no plugin of the name pdctl in nobody"):
        shipping.verify(sys.executable, shipping.install(), "nobody.reads.this")


@pytest.mark.code("PD3114")
@pytest.mark.parametrize("place", ["pdctl/core", "pdctl", "."])
@pytest.mark.parametrize("write", [shipping.install, lambda: materialise("tiny-llama")], ids=["core", "model"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, place: str, write: Callable[[], Path]) -> None:
    target = tmp_path / "cache" / (place.replace("core", "models") if write is not shipping.install else place)
    target.mkdir(parents=True)
    os.chown(target, STRANGER, STRANGER)
    with pytest.raises(GateError, match=f"belongs to user {STRANGER}") as caught:
        write()
    assert caught.value.code == "PD3114"
    assert str(target.resolve()) in caught.value.message


@pytest.mark.code("PD3114")
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o702])
def test_a_folder_above_in_which_others_can_rename_is_refused(tmp_path: Path, mode: int) -> None:
    above = tmp_path / "cache"
    above.mkdir()
    above.chmod(mode)
    with pytest.raises(GateError, match=r"others may write there \(mode 7") as caught:
        shipping.install()
    assert caught.value.code == "PD3114"


def test_a_shared_folder_in_which_nobody_can_rename_what_is_ours_serves(tmp_path: Path) -> None:
    """As /tmp does."""
    above = tmp_path / "cache"
    above.mkdir()
    above.chmod(0o1777)
    assert shipping.install().is_relative_to(above)


def test_a_folder_of_ours_that_was_made_too_wide_is_narrowed() -> None:
    path = shipping.install()
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o777)
    assert shipping.install() == path
    assert [folder.stat().st_mode & 0o777 for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_a_cache_that_is_a_link_to_a_larger_disk_serves(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "cache" / "pdctl").symlink_to(tmp_path / "disk")
    assert shipping.verify(sys.executable, shipping.install(), GROUP) == shipping.digest()


@pytest.mark.code("PD3115")
@pytest.mark.parametrize("place", ["pdctl", "pdctl/core"])
def test_a_cache_that_takes_no_file_is_named(tmp_path: Path, place: str) -> None:
    file = tmp_path / "cache" / place
    file.parent.mkdir(parents=True)
    file.write_text("")
    with pytest.raises(GateError, match=str(file)) as caught:
        shipping.install()
    assert caught.value.code == "PD3115"


@pytest.mark.code("PD3115")
def test_a_folder_in_the_place_of_the_core_is_named() -> None:
    shipping.core_file().mkdir(parents=True)
    with pytest.raises(GateError, match="is a directory") as caught:
        shipping.install()
    assert caught.value.code == "PD3115"
