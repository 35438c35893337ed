"""A unit's log has a limit, its lines stay whole, and a disk that takes nothing holds nobody up."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.launch.base import Unit
from pdctl.launch.local import LocalLauncher
from pdctl.launch.outlet import KEPT, RotatingLog
from tests.unit.launch.test_local import left_of, until


def opened(path: Path, limit: int) -> RotatingLog:
    return RotatingLog(path, os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), limit)


def files(path: Path) -> list[bytes]:
    """Oldest first."""
    names = [path.with_name(f"{path.name}.{number}") for number in range(KEPT, 0, -1)]
    return [name.read_bytes() for name in [*names, path] if name.exists()]


@settings(deadline=None)  # it writes files, and a loaded disk is slow
@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 60))
def test_no_file_is_larger_than_the_limit_and_what_is_kept_is_the_end(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], limit: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "unit.log"
    log = opened(path, limit)
    try:
        for chunk in chunks:
            log.write(chunk)
    finally:
        os.close(log.descriptor)
    found, whole = files(path), b"".join(chunks)
    assert len(found) <= KEPT + 1
    assert all(len(content) <= limit for content in found)
    assert whole.endswith(b"".join(found))
    assert len(found) == KEPT + 1 or b"".join(found) == whole
    assert {entry.name for entry in path.parent.iterdir()} <= {"unit.log", "unit.log.1", "unit.log.2"}


def test_a_new_file_begins_with_a_line(tmp_path: Path) -> None:
    log = opened(tmp_path / "unit.log", 100)
    for number in range(20):
        log.write(b"line %d of twenty\nand anot" % number)
        log.write(b"her\n")
    os.close(log.descriptor)
    assert all(content.startswith((b"line", b"and", b"her")) for content in files(tmp_path / "unit.log"))
    assert all(content.endswith(b"\n") for content in files(tmp_path / "unit.log")[-1:])


@pytest.fixture
def full() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def test_what_a_full_disk_does_not_take_is_counted_and_said_when_it_takes_again(tmp_path: Path, full: int) -> None:
    log = opened(tmp_path / "unit.log", 10_000)
    room = os.dup(log.descriptor)
    log.write(b"before\n")
    os.dup2(full, log.descriptor)
    log.write(b"123456789\n")
    log.write(b"123456789\n")
    os.dup2(room, log.descriptor)
    log.write(b"after\n")
    os.close(room)
    os.close(log.descriptor)
    missing = "pdctl-guard: 20 bytes are missing here, the disk took nothing"
    assert (tmp_path / "unit.log").read_text().splitlines() == ["before", missing, "after"]


def test_a_log_whose_folder_takes_no_new_file_is_emptied_and_not_grown(tmp_path: Path) -> None:
    folder = tmp_path / "units"
    folder.mkdir()
    log = opened(folder / "unit.log", 10)
    folder.rename(tmp_path / "moved")
    for _ in range(5):
        log.write(b"1234567\n")
    os.close(log.descriptor)
    assert (tmp_path / "moved" / "unit.log").read_bytes() == b"1234567\n"


FLOOD = (
    "import os, sys, time\n"
    "for number in range({lines}):\n"
    "    os.write(1, b'%063d\\n' % number)\n"
    "open(sys.argv[1], 'w').write('done')\n"
    "time.sleep(300)\n"
)


@pytest.mark.integration
def test_a_flood_stays_within_the_limit_of_its_unit(tmp_path: Path) -> None:
    launcher, done = LocalLauncher(tmp_path / "units"), tmp_path / "done"
    argv = (sys.executable, "-c", FLOOD.format(lines=3000), str(done))
    launcher.start(Unit("prefill-0", "prefill", argv, log_bytes=65_536))
    try:
        until(lambda: done.exists() and launcher.log("prefill-0").read_bytes().endswith(b"2999\n"))
        found = files(launcher.log("prefill-0"))
        assert len(found) == KEPT + 1
        assert max(map(len, found)) <= 65_536
        numbers = [int(line) for content in found for line in content.split()]
        assert numbers == list(range(3000 - len(numbers), 3000))
    finally:
        launcher.stop(["prefill-0"])
    assert left_of(launcher) == []


@pytest.mark.integration
def test_a_unit_writes_on_though_its_log_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than any pipe holds, so that it would hang if nobody read; and its guard still answers."""
    launcher, done = LocalLauncher(tmp_path / "units"), tmp_path / "done"
    monkeypatch.setattr(launcher, "_new_log", lambda name: os.open("/dev/full", os.O_WRONLY))
    argv = (sys.executable, "-c", FLOOD.format(lines=40_000), str(done))
    launcher.start(Unit("prefill-0", "prefill", argv, log_bytes=1 << 40))
    try:
        until(done.exists)
    finally:
        launcher.stop(["prefill-0"])
    assert left_of(launcher) == []
