"""The local launcher, on real processes: nothing that a unit does may outlive it, and nothing kills it by accident."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pdctl.errors import GateError, PdctlError
from pdctl.launch import process
from pdctl.launch.base import Unit, UnitStatus
from pdctl.launch.local import LocalLauncher
from pdctl.launch.record import StateError
from tests.unit.launch.unruly import map_shared

pytestmark = pytest.mark.integration
UNRULY = str(Path(__file__).with_name("unruly.py"))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    launcher = LocalLauncher(tmp_path / "units")
    yield launcher
    launcher.stop(launcher.known())


def unit(*flags: str, name: str = "prefill-0", **options: object) -> Unit:
    return Unit(name, "prefill", (sys.executable, UNRULY, *flags), **options)  # type: ignore[arg-type]


def until(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "the condition did not come true in time"
        time.sleep(0.02)


def is_up(launcher: LocalLauncher, name: str = "prefill-0") -> bool:
    return launcher.log(name).exists() and "up " in launcher.log(name).read_text()


def left_of(launcher: LocalLauncher, name: str = "prefill-0") -> list[process.Process]:
    return process.marked(str(launcher.root / name))


def test_a_stray_grandchild_does_not_outlive_its_unit(launcher: LocalLauncher) -> None:
    launcher.start(unit("children"))
    until(lambda: is_up(launcher))
    assert len(left_of(launcher)) == 4  # guard, main, child, stray
    launcher.stop(["prefill-0"])
    assert left_of(launcher) == []
    assert launcher.status("prefill-0").state == "stopped"


def test_a_unit_deaf_to_sigterm_is_killed_after_its_grace(launcher: LocalLauncher) -> None:
    launcher.start(unit("deaf", "children", grace_s=0.2))
    until(lambda: is_up(launcher))
    launcher.stop(["prefill-0"])
    assert left_of(launcher) == []


def test_a_stopped_unit_can_still_be_ended(launcher: LocalLauncher) -> None:
    launcher.start(unit(grace_s=2))
    until(lambda: is_up(launcher))
    os.kill(pid_of(launcher), signal.SIGSTOP)
    launcher.stop(["prefill-0"])
    assert left_of(launcher) == []


def test_a_killed_unit_is_restarted_and_counted_and_its_children_go_with_it(launcher: LocalLauncher) -> None:
    launcher.start(unit("children"))
    until(lambda: is_up(launcher))
    first = left_of(launcher)
    os.kill(pid_of(launcher), signal.SIGKILL)
    until(lambda: launcher.status("prefill-0").restarts == 1 and launcher.status("prefill-0").state == "running")
    status = launcher.status("prefill-0")
    assert status.last_exit == "killed by SIGKILL"
    guard = min(first, key=lambda item: item.started)
    until(lambda: len(left_of(launcher)) == 4)
    assert set(first) & set(left_of(launcher)) <= {guard}


def test_a_signal_without_a_name_does_not_end_the_guard(launcher: LocalLauncher) -> None:
    launcher.start(unit())
    until(lambda: is_up(launcher))
    os.kill(pid_of(launcher), signal.SIGRTMIN + 5)
    until(lambda: launcher.status("prefill-0").restarts == 1)
    assert launcher.status("prefill-0").last_exit == f"killed by signal {signal.SIGRTMIN + 5}"


def test_a_unit_that_keeps_crashing_is_given_up(launcher: LocalLauncher) -> None:
    launcher.start(unit("crash", backoff_s=(0.01, 0.05)))
    until(lambda: launcher.status("prefill-0").state == "failed")
    status = launcher.status("prefill-0")
    assert (status.last_exit, status.restarts, status.pid) == ("exit status 3", 2, None)
    until(lambda: left_of(launcher) == [])


def test_shared_memory_of_a_killed_unit_goes_unless_another_uses_it(launcher: LocalLauncher) -> None:
    name = f"pdctl-test-{os.getpid()}"
    own, lent = Path("/dev/shm", name), Path("/dev/shm", f"{name}-lent")
    launcher.start(unit("deaf", "shm", name, grace_s=0.1))
    until(lambda: is_up(launcher))
    borrowed = map_shared(lent.name)
    try:
        launcher.stop(["prefill-0"])
        assert not own.exists()
        assert lent.exists()
    finally:
        borrowed.close()
        lent.unlink()


@pytest.mark.code("PD3018")
def test_a_guard_that_cannot_start_is_an_error(launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdctl.launch.local.sys.executable", "/bin/false")
    with pytest.raises(GateError, match="the guard of prefill-0 did not start") as caught:
        launcher.start(unit())
    assert caught.value.code == "PD3018"


@pytest.mark.code("PD3017")
def test_what_cannot_be_killed_is_named_and_not_waited_for_for_ever(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.start(unit())
    until(lambda: is_up(launcher))
    with monkeypatch.context() as patch:
        patch.setattr("pdctl.launch.local.process.send", lambda process, number: None)
        patch.setattr("pdctl.launch.local.STOP_S", 0.1)
        with pytest.raises(GateError, match=r"prefill-0: cannot be killed: pid \d+") as caught:
            launcher.stop(["prefill-0"])
    assert caught.value.code == "PD3017"


def test_a_unit_whose_guard_is_killed_dies_with_it(launcher: LocalLauncher) -> None:
    launcher.start(unit())
    until(lambda: is_up(launcher))
    pid = pid_of(launcher)
    guard = process.find(pid)
    assert guard is not None
    os.kill(guard.parent, signal.SIGKILL)
    until(lambda: process.find(pid) is None)
    assert launcher.status("prefill-0").state == "lost"


def test_a_unit_outlives_the_process_that_started_it(launcher: LocalLauncher) -> None:
    script = (
        "import sys; from pathlib import Path; from pdctl.launch.base import Unit; "
        "from pdctl.launch.local import LocalLauncher; "
        "LocalLauncher(Path(sys.argv[1])).start(Unit('prefill-0', 'prefill', tuple(sys.argv[2:])))"
    )
    subprocess.run([sys.executable, "-c", script, str(launcher.root), sys.executable, UNRULY], check=True)
    until(lambda: is_up(launcher))
    assert launcher.status("prefill-0").state == "running"


def test_a_program_that_does_not_exist_is_named_in_the_log(launcher: LocalLauncher) -> None:
    launcher.start(Unit("prefill-0", "prefill", ("/no/such/program",)))
    until(lambda: launcher.status("prefill-0").last_exit == "exit status 127")
    assert "cannot start /no/such/program: No such file or directory" in launcher.log("prefill-0").read_text()


def test_values_of_variables_never_reach_a_disk(launcher: LocalLauncher) -> None:
    launcher.start(unit(env={"HF_TOKEN": "hunter2"}))
    until(lambda: is_up(launcher))
    files = [path.read_text() for path in launcher.root.rglob("*") if path.is_file()]
    assert files
    assert not any("hunter2" in text for text in files)


@pytest.mark.code("PD3005")
def test_a_damaged_record_is_an_error_to_read_but_no_obstacle_to_stopping(launcher: LocalLauncher) -> None:
    launcher.start(unit("children"))
    until(lambda: is_up(launcher))
    (launcher.root / "prefill-0" / "state.json").write_text('{"unit": "prefill-0", "sta')
    with pytest.raises(StateError, match=r"state\.json: the state file is damaged") as caught:
        launcher.status("prefill-0")
    assert caught.value.code == "PD3005"
    launcher.stop(["prefill-0"])
    assert left_of(launcher) == []
    assert launcher.status("prefill-0") == UnitStatus("prefill-0", "absent")


def _a_file(units: Path) -> None:
    (units / ".DS_Store").write_text("")


def _a_folder_in_the_place_of_the_record(units: Path) -> None:
    (units / "prefill-0" / "state.json").unlink()
    (units / "prefill-0" / "state.json").mkdir()


def _another_schema(units: Path) -> None:
    (units / "prefill-0" / "state.json").write_text('{"schema": "of another time", "unit": 3}')


def _a_dangling_link(units: Path) -> None:
    (units / "old").symlink_to("/no/such/folder")


def _a_folder_of_no_unit(units: Path) -> None:
    (units / "prefill-1" / "deeper").mkdir(parents=True)


@pytest.mark.parametrize(
    "stray",
    [_a_file, _a_folder_in_the_place_of_the_record, _another_schema, _a_dangling_link, _a_folder_of_no_unit],
)
def test_what_lies_among_the_records_keeps_no_unit_from_being_ended(
    launcher: LocalLauncher, stray: Callable[[Path], None]
) -> None:
    for name in ("decode-0", "prefill-0", "router"):
        launcher.start(unit(name=name))
    stray(launcher.root)
    if stray is _a_folder_in_the_place_of_the_record:
        with pytest.raises(PdctlError, match=r"units: cannot keep state here") as caught:
            launcher.stop(launcher.known())
        assert caught.value.code == "PD3016"
    else:
        assert launcher.stop(launcher.known()) == ("decode-0", "prefill-0", "router")
    assert [found for name in ("decode-0", "prefill-0", "router") for found in left_of(launcher, name)] == []
    with suppress(OSError):
        (launcher.root / "prefill-0" / "state.json").rmdir()


def test_what_cannot_be_ended_keeps_nothing_else_from_being_ended(
    launcher: LocalLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("decode-0", "prefill-0"):
        launcher.start(unit(name=name))
    spared = {found.pid for found in left_of(launcher, "decode-0")}
    send = process.send
    with monkeypatch.context() as patch:
        patch.setattr("pdctl.launch.local.process.send", lambda one, number: one.pid in spared or send(one, number))
        patch.setattr("pdctl.launch.local.STOP_S", 0.1)
        with pytest.raises(GateError, match="decode-0: cannot be killed"):
            launcher.stop(["decode-0", "prefill-0"])
    assert left_of(launcher, "prefill-0") == []
    assert launcher.status("prefill-0").state == "stopped"
    assert launcher.status("decode-0").state != "stopped"


def test_a_guard_that_had_not_written_its_record_is_ended_and_counted(launcher: LocalLauncher) -> None:
    launcher.start(unit())
    (launcher.root / "prefill-0" / "state.json").unlink()
    assert launcher.stop(launcher.known()) == ("prefill-0",)
    assert left_of(launcher) == []


def test_a_record_of_an_earlier_boot_is_not_believed(launcher: LocalLauncher) -> None:
    launcher.start(unit())
    record = launcher.root / "prefill-0" / "state.json"
    until(lambda: is_up(launcher))
    text = record.read_text()
    assert process.boot_id() in text
    record.write_text(text.replace(process.boot_id(), "another"))
    assert launcher.status("prefill-0").state == "lost"


def pid_of(launcher: LocalLauncher) -> int:
    pid = launcher.status("prefill-0").pid
    assert pid is not None
    return pid
