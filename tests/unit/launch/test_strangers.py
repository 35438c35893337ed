"""What is not ours lives, whatever a record says; folders that others may write are refused before anything is done."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pdctl.errors import GateError, PdctlError
from pdctl.fleet import load_fleet
from pdctl.launch import process
from pdctl.launch.base import Unit
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import FleetFolder
from pdctl.up.runner import bring_up
from pdctl.up.status import fleet_status
from pdctl.up.takedown import bring_down

pytestmark = pytest.mark.integration

FLEET = (
    "schema: pdctl.fleet/v1\nname: forged\nmodel: {path: /no/such/model}\nengine: reference\nprefill: {}\ndecode: {}\n"
)
SLEEP = "import time; print('up', flush=True); time.sleep(300)"


@pytest.fixture
def stranger() -> Iterator["subprocess.Popen[bytes]"]:
    """A session leader of somebody else, with a child in its session."""
    code = "import os, time\nos.fork()\nos.write(1, b'up\\n')\ntime.sleep(300)"
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    assert leader.stdout is not None
    assert [leader.stdout.readline(), leader.stdout.readline()] == [b"up\n", b"up\n"]
    yield leader
    with suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.wait()
    leader.stdout.close()


def members(leader: "subprocess.Popen[bytes]") -> int:
    return sum(item.session == leader.pid for item in process.everyone())


def forge(pid: int, **more: object) -> Path:
    """A record that names a stranger's pid, as one does when the number was given again."""
    folder = FleetFolder("forged").units / "prefill-0"
    folder.mkdir(parents=True)
    here = process.here()
    record = {
        "unit": "prefill-0",
        "role": "prefill",
        "state": "running",
        "digest": "d",
        "boot": here.boot,
        "namespace": here.namespace,
        "guard_pid": pid,
        "guard_started": 1,
        "pid": pid,
        "started": 1,
    }
    (folder / "state.json").write_text(json.dumps(record | more))
    return folder


def down(tmp_path: Path) -> None:
    bring_down("forged")


def up(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    with pytest.raises(PdctlError):  # the model: what an earlier run left is ended before
        bring_up(load_fleet(tmp_path / "fleet.yaml"))


@pytest.mark.parametrize("command", [down, up])
@pytest.mark.parametrize("namespace", ["ours", "", "another"])
def test_a_pid_that_was_given_again_is_nobody_of_ours(
    stranger: "subprocess.Popen[bytes]", tmp_path: Path, command: Callable[[Path], None], namespace: str
) -> None:
    forge(stranger.pid, **({} if namespace == "ours" else {"namespace": namespace}))
    assert LocalLauncher(FleetFolder("forged").units).status("prefill-0").state == "lost"
    command(tmp_path)
    assert members(stranger) == 2


@pytest.mark.parametrize("which", [{"namespace": "of a container that ended"}, {"boot": "of yesterday"}])
def test_even_the_start_time_counts_only_where_it_was_written(
    stranger: "subprocess.Popen[bytes]", tmp_path: Path, which: dict[str, str]
) -> None:
    found = process.find(stranger.pid)
    assert found is not None
    forge(stranger.pid, started=found.started, guard_started=found.started, **which)
    down(tmp_path)
    assert members(stranger) == 2


def test_a_copy_of_a_state_folder_does_not_end_what_the_first_one_runs(tmp_path: Path) -> None:
    folder = forge(1)
    environ = {**os.environ, process.MARK: str(tmp_path / "first" / "prefill-0")}
    with subprocess.Popen(
        [sys.executable, "-c", SLEEP], start_new_session=True, env=environ, stdout=subprocess.PIPE
    ) as theirs:
        assert theirs.stdout is not None
        assert theirs.stdout.readline() == b"up\n"
        found = process.find(theirs.pid)
        assert found is not None
        record = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps(record | {"pid": found.pid, "started": found.started}))
        down(tmp_path)
        assert theirs.poll() is None
        theirs.kill()


def test_another_containers_folder_of_the_same_name_is_another_unit(tmp_path: Path) -> None:
    """It shares our pids and not our files: its mark reads like ours, and means another folder."""
    folder, theirs = forge(1), tmp_path / "theirs"
    theirs.mkdir()
    apart = ["unshare", "-m" if os.geteuid() == 0 else "-Urm", "sh", "-c"]
    script = f'mount --bind {theirs} {folder} && exec {sys.executable} -c "{SLEEP}"'
    environ = {**os.environ, process.MARK: str(folder)}
    with subprocess.Popen([*apart, script], start_new_session=True, env=environ, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        down(tmp_path)
        assert other.poll() is None
        assert [one.mark for one in process.seen(process.table(), str(folder)) if one.pid == other.pid] == ["other"]
        other.kill()


def test_a_signal_to_a_pid_given_again_goes_nowhere(stranger: "subprocess.Popen[bytes]") -> None:
    found = process.find(stranger.pid)
    assert found is not None
    process.send(found._replace(started=found.started - 1), signal.SIGKILL)
    assert members(stranger) == 2
    process.send(found, signal.SIGKILL)
    assert stranger.wait(20) == -signal.SIGKILL


def _make_writable(folder: Path) -> None:
    folder.chmod(0o777)


def _give_away(folder: Path) -> None:
    os.chown(folder, 65534, 65534)


@pytest.mark.code("PD3014")
@pytest.mark.parametrize("spoil", [_make_writable, *([_give_away] if os.geteuid() == 0 else [])])
@pytest.mark.parametrize("above", [0, 1, 2, 3], ids=["unit", "units", "fleet", "root"])
def test_a_folder_that_others_may_write_is_refused_before_anything_is_done(
    stranger: "subprocess.Popen[bytes]", tmp_path: Path, above: int, spoil: Callable[[Path], None]
) -> None:
    """Also where what it holds is true."""
    found = process.find(stranger.pid)
    assert found is not None
    folder = forge(stranger.pid, started=found.started, guard_started=found.started)
    spoiled = [folder, *folder.parents][above]
    spoil(spoiled)
    with pytest.raises(GateError, match=rf"^{spoiled}: owner \w+, mode 0\d+: ") as caught:
        down(tmp_path)
    assert caught.value.code == "PD3014"
    assert caught.value.hint is not None
    assert ("chmod go-w" in caught.value.hint) == (spoil is _make_writable)
    assert members(stranger) == 2
    if above >= 2:
        with pytest.raises(GateError, match=r"mode 0\d+"):
            fleet_status("forged")


def test_folders_of_state_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = FleetFolder("f", tmp_path / "deep" / "root")
        with folder.lock("up"):
            launcher = LocalLauncher(folder.units)
            launcher.start(Unit("prefill-0", "prefill", ("sleep", "300")))
            launcher.stop(["prefill-0"])
    finally:
        os.umask(before)
    made = [folder.path.parent, folder.path, folder.units, folder.units / "prefill-0"]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o700"] * 4
    assert launcher.log("prefill-0").stat().st_mode & 0o077 == 0
