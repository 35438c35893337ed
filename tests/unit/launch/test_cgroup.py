"""Where a unit lives: in a cgroup of its own where one can be made, and `down` finds there what hides from all else."""

import os
import signal
import sys
from pathlib import Path

import pytest

from pdctl.launch import cgroup, process
from pdctl.launch.base import Unit
from pdctl.launch.local import LocalLauncher
from tests.unit.launch.test_local import pid_of, until

ONE = "36 25 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
BOTH = (
    "30 25 0:26 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    "31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
)


@pytest.mark.parametrize(
    ("mounts", "own", "folder"),
    [
        (ONE, "0::/user.slice/session-1.scope\n", "/sys/fs/cgroup/user.slice/session-1.scope"),
        (ONE, "0::/\n", "/sys/fs/cgroup"),
        (BOTH, "8:pids:/x\n0::/y\n", "/sys/fs/cgroup/unified/y"),
        (ONE.replace(" / /", " /docker/1 /"), "0::/docker/1/a\n", "/sys/fs/cgroup/a"),
        (ONE.replace("/sys/fs/cgroup", "/a\\040folder"), "0::/b\n", "/a folder/b"),
        (ONE.replace(" / /", " /docker/1 /"), "0::/elsewhere\n", None),
        (ONE, "0::/../outside\n", None),
        (ONE, "8:pids:/x\n", None),
        (BOTH.splitlines()[0], "0::/y\n", None),
        ("", "0::/\n", None),
        (ONE, "", None),
    ],
)
def test_the_folder_of_a_process(mounts: str, own: str, folder: str | None) -> None:
    assert cgroup.located(mounts, own) == (Path(folder) if folder else None)


def test_two_units_of_one_name_have_two_cgroups(tmp_path: Path) -> None:
    """Also where one folder took the other's place: its number is another's then."""
    first = tmp_path / "prefill-0"
    first.mkdir()
    name = cgroup.name_of(str(first))
    assert name == cgroup.name_of(str(first))
    first.rename(tmp_path / "old")
    assert cgroup.name_of(str(first)) is None
    first.mkdir()
    assert cgroup.name_of(str(first)) not in (name, None)


def test_where_none_can_be_made_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only mount, and one that shows folders and no cgroups: what was made is removed."""
    monkeypatch.setattr(cgroup, "_folder_of", lambda pid: Path("/proc/sys"))
    assert cgroup.make(str(tmp_path)) is None
    monkeypatch.setattr(cgroup, "_folder_of", lambda pid: tmp_path)
    assert cgroup.make(str(tmp_path)) is None
    assert list(tmp_path.iterdir()) == []


ESCAPE = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        code = 'import os, sys, time; open(sys.argv[1], \"w\").write(str(os.getpid())); time.sleep(300)'\n"
    "        os.execve(sys.executable, [sys.executable, '-c', code, sys.argv[1]], {})\n"
    "    os._exit(0)\n"
    "time.sleep(300)\n"
)


@pytest.mark.integration
def test_what_hides_from_a_killed_guard_is_found_in_its_cgroup_or_said_to_be_beyond_reach(tmp_path: Path) -> None:
    """It forked twice, opened a session and cleared its environment; the status says which of the two holds here."""
    launcher, hidden = LocalLauncher(tmp_path / "units"), tmp_path / "hidden"
    launcher.start(Unit("prefill-0", "prefill", (sys.executable, "-c", ESCAPE, str(hidden))))
    until(lambda: hidden.exists() and hidden.read_text())
    escaped = process.find(int(hidden.read_text()))
    guard = process.find(pid_of(launcher))
    assert escaped is not None
    assert guard is not None
    try:
        contained = launcher.status("prefill-0").contained
        os.kill(guard.parent, signal.SIGKILL)
        until(lambda: process.find(guard.pid) is None)
        launcher.stop(["prefill-0"])
        assert process.is_alive(escaped.pid, escaped.started) is not contained
    finally:
        process.send(escaped, signal.SIGKILL)
    assert not contained or not [entry for entry in _cgroups(tmp_path) if entry.exists()]


def _cgroups(folder: Path) -> list[Path]:
    name, here = cgroup.name_of(str(folder / "units" / "prefill-0")), cgroup._folder_of("self")
    return [here / name] if here and name else []
