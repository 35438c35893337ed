"""A file is there whole or as it was, and none is believed that somebody else could have written."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pdctl.files import read_own, replace


def test_what_was_there_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    replace(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"], "nothing half written is left"


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, path = tmp_path / "theirs", tmp_path / "a"
    target.write_text("theirs")
    path.symlink_to(target)
    replace(path, b"ours")
    assert (path.is_symlink(), path.read_bytes(), target.read_text()) == (False, b"ours", "theirs")
    assert path.stat().st_mode & 0o777 == 0o600


def test_threads_that_write_the_same_file_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have written their scratch file before the first is put in place."""
    path, threads = tmp_path / "a", 4
    together, put = Barrier(threads, timeout=10), Path.replace

    def after_all(self: Path, target: Path) -> Path:
        together.wait()
        return put(self, target)

    monkeypatch.setattr(Path, "replace", after_all)
    wanted = [bytes([65 + number]) * 1000 for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda data: replace(path, data), wanted))
    assert path.read_bytes() in wanted
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_only_what_is_ours_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert read_own(path) is None
    replace(path, b"x" * 100_000)
    assert read_own(path) == b"x" * 100_000
    for mode, others_write in ((0o640, False), (0o604, False), (0o620, True), (0o602, True)):
        path.chmod(mode)
        assert (read_own(path) is None) == others_write
        assert read_own(path, refused=0o077) is None
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    assert [read_own(tmp_path / name) for name in ("link", "pipe")] == [None, None]
    assert read_own(tmp_path) is None, "a folder is no file"
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        assert read_own(path) is None
