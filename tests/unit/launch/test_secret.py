"""A fleet's secret: made once, private, and gone when the fleet is."""

import os
import stat
from pathlib import Path

import pytest

from pdctl.errors import PdctlError
from pdctl.launch.state import FleetFolder


@pytest.fixture
def folder(tmp_path: Path) -> FleetFolder:
    made = FleetFolder("f", tmp_path)
    made.path.mkdir()
    return made


def test_it_is_made_once_and_only_its_owner_may_read_it(folder: FleetFolder) -> None:
    before = os.umask(0)
    try:
        first = folder.secret()
    finally:
        os.umask(before)
    assert len(bytes.fromhex(first)) == 32
    assert folder.secret() == first
    assert stat.S_IMODE((folder.path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in folder.path.iterdir()] == ["secret"]


def test_two_fleets_have_two(tmp_path: Path) -> None:
    folders = [FleetFolder(name, tmp_path) for name in ("a", "b")]
    for one in folders:
        one.path.mkdir()
    assert len({one.secret() for one in folders}) == 2


def test_the_next_fleet_of_that_name_has_another(folder: FleetFolder) -> None:
    first = folder.secret()
    folder.forget_secret()
    folder.forget_secret()
    assert list(folder.path.iterdir()) == []
    assert folder.secret() != first


@pytest.mark.parametrize("how", ["read by all", "cut", "empty", "long", "link", "fifo"])
def test_what_is_no_secret_is_replaced(folder: FleetFolder, how: str) -> None:
    path = folder.path / "secret"
    first = folder.secret()
    match how:
        case "read by all":
            path.chmod(0o640)
        case "cut" | "empty" | "long":
            path.write_text({"cut": first[:20], "empty": "", "long": first * 2}[how])
        case "link":
            path.rename(folder.path / "elsewhere")
            path.symlink_to("elsewhere")
        case "fifo":
            path.unlink()
            os.mkfifo(path, 0o600)
    second = folder.secret()
    assert second not in (first, "")
    assert len(bytes.fromhex(second)) == 32
    assert stat.S_ISREG(path.lstat().st_mode)


@pytest.mark.code("PD3016")
def test_a_folder_that_takes_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(PdctlError, match="cannot keep state here") as caught:
        FleetFolder("nowhere", tmp_path).secret()
    assert caught.value.code == "PD3016"
