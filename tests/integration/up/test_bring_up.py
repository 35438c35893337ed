"""`up`, `status`, `logs`, `down` over processes that misbehave in every way that a phase must notice."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest

from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import FleetFolder, state_root
from pdctl.up.phases import NAMES
from tests.integration.up.conftest import Fleet, until

pytestmark = pytest.mark.integration


def test_a_fleet_comes_up_serves_and_goes_without_a_trace(fleet: Fleet) -> None:
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    url = up.stdout.split()[-1]
    assert up.stdout == f"fake is up at {url}\n"
    assert [line.split()[1] for line in up.stderr.splitlines() if line[:1] in "✓–"] == list(NAMES)
    status = json.loads(fleet.run("status", fleet.name, "-o", "json").stdout)
    assert status["phase"] == "up"
    assert [(unit["name"], unit["role"], unit["state"]) for unit in status["units"]] == [
        ("prefill-0", "prefill", "ready"),
        ("decode-0", "decode", "ready"),
        ("router", "router", "ready"),
    ]
    assert set(status["units"][0]) >= {"name", "role", "pid", "port", "state", "restarts"}
    assert "fake decode begins" in fleet.run("logs", fleet.name, "decode-0").stdout
    down = fleet.down()
    assert (down.returncode, down.stdout) == (0, "fake is down; ended decode-0, prefill-0, router\n")
    ended = [line.split()[1] for line in down.stderr.splitlines() if line.startswith("✓")]
    assert (ended[0], sorted(ended)) == ("router", ["decode-0", "prefill-0", "router"]), "a line as each is gone"
    assert fleet.left() == []
    assert fleet.down().stdout == "fake is down; nothing was running\n"
    assert fleet.run("status", fleet.name).returncode == 3


@pytest.mark.parametrize(
    ("where", "how", "says"),
    [
        pytest.param(
            "decode",
            "crash",
            "error PD3006  decode-0 ended before it was ready: exit status 3",
            marks=pytest.mark.code("PD3006"),
        ),
        pytest.param("prefill", "mute", "error PD3007  prefill-0 does not answer", marks=pytest.mark.code("PD3007")),
        pytest.param("decode", "refuse", "error PD3008  prefill-0 → decode-0: ", marks=pytest.mark.code("PD3008")),
        pytest.param(
            "decode",
            "recompute",
            "error PD3009  prefill-0 → decode-0: decode computed 7 prompt tokens",
            marks=pytest.mark.code("PD3009"),
        ),
    ],
)
def test_a_phase_that_fails_says_why_and_leaves_nothing(fleet: Fleet, where: str, how: str, says: str) -> None:
    patience = "startup_s: 3, " if how == "mute" else ""
    fleet.write(**{where: f"{{{patience}args: [--misbehave, {how}]}}"})
    up = fleet.up()
    assert up.returncode == 3
    assert says in up.stderr
    assert "    | " in up.stderr or how == "recompute"  # the culprit's log is quoted
    assert fleet.left() == []
    assert fleet.status()["phase"] == "down"


def test_a_pool_may_say_how_long_its_engines_may_take(fleet: Fleet) -> None:
    fleet.write(prefill="{startup_s: 1, args: [--misbehave, mute]}")
    assert "does not answer" in (up := fleet.up()).stderr
    assert "after 1 s" in up.stderr


@pytest.mark.code("PD3010")
def test_pairs_that_disagree_are_named(fleet: Fleet) -> None:
    fleet.write(decode="[{name: good, replicas: 2}, {name: bad, args: [--misbehave, other]}]")
    up = fleet.up()
    assert "error PD3010  prefill-0 → bad-0: another answer than over the remaining pairs" in up.stderr
    assert up.returncode == 3


@pytest.mark.code("PD3011")
def test_a_router_that_serves_nobody_fails_the_last_phase(fleet: Fleet) -> None:
    fleet.write(more="router: {args: [--misbehave, refuse]}\n")
    up = fleet.up()
    assert "error PD3011  no completion from router: " in up.stderr
    assert fleet.left() == []


@pytest.mark.code("PD3012")
def test_a_completion_unlike_the_aggregate_engines_fails(fleet: Fleet) -> None:
    fleet.write(more="roles: {aggregate: {args: [--misbehave, other]}}\n")
    up = fleet.up()
    assert "error PD3012  through the router '123', from aggregate-0 '999'" in up.stderr


@pytest.mark.code("PD3002")
def test_a_port_in_use_is_found_before_anything_starts(fleet: Fleet) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fleet.write(prefill=f"{{ports: {{http: {port}}}}}")
        up = fleet.run("up", str(fleet.path))
    assert up.returncode == 3
    assert f"error PD3002  prefill-0: port {port} (http) is in use by " in up.stderr
    assert f"(pid {os.getpid()})" in up.stderr
    assert not (state_root() / fleet.name / "units").exists()


def test_keep_leaves_what_runs_and_the_next_up_adopts_it(fleet: Fleet) -> None:
    fleet.write(decode="{args: [--misbehave, refuse]}")
    assert fleet.up("--keep").returncode == 3
    kept = fleet.unit("prefill-0")["pid"]
    assert kept
    assert fleet.run("status", fleet.name).returncode == 3
    fleet.write()
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    assert "(1 adopted)" in up.stderr
    assert fleet.unit("prefill-0")["pid"] == kept


@pytest.mark.code("PD3001")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(fleet: Fleet, number: signal.Signals) -> None:
    fleet.write(decode="{args: [--misbehave, hang]}")
    up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
    until(lambda: _phase(fleet) == "pairs")
    up.send_signal(number)
    _, err = up.communicate(timeout=90)
    assert up.returncode == 130
    assert "error PD3001  interrupted" in err
    assert fleet.left() == []


def test_a_fleet_of_an_earlier_boot_that_cannot_come_up_again_is_down(fleet: Fleet) -> None:
    """Its state says up, and nothing of it runs: there is nothing to repair."""
    assert fleet.up().returncode == 0
    LocalLauncher(FleetFolder(fleet.name).units).stop(["prefill-0", "decode-0", "router"])
    fleet.write(decode="{args: [--misbehave, crash]}")
    assert fleet.up().returncode == 3
    assert fleet.status()["phase"] == "down"


def test_a_command_killed_midway_is_taken_up_by_the_next(fleet: Fleet) -> None:
    fleet.write(decode="{args: [--misbehave, hang]}")
    up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
    until(lambda: _phase(fleet) == "pairs")
    up.kill()
    up.communicate()
    assert len(fleet.left()) == 4  # prefill and decode, each under its guard
    left = fleet.run("status", fleet.name)
    assert left.returncode == 3
    assert "`up` ended in pairs; run it again, or `down`" in left.stderr
    fleet.write()
    again = fleet.up()
    assert again.returncode == 0, again.stderr
    assert "ending what an earlier run left" in again.stderr
    assert fleet.down().returncode == 0
    assert fleet.left() == []


@pytest.mark.code("PD3004")
def test_two_commands_at_once_are_told_apart(fleet: Fleet) -> None:
    fleet.write(decode="{args: [--misbehave, hang]}")
    up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
    until(lambda: _phase(fleet) == "pairs")
    down = fleet.down()
    assert down.returncode == 3
    assert f"error PD3004  fake: pdctl up (pid {up.pid}) is at work on this fleet" in down.stderr
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=90)


def test_a_killed_engine_comes_back_and_the_fleet_is_whole_again(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    os.kill(fleet.unit("decode-0")["pid"], signal.SIGKILL)
    until(lambda: fleet.unit("decode-0")["restarts"] == 1 and fleet.status()["ok"])
    assert fleet.unit("decode-0")["last_exit"] == "killed by SIGKILL"


def test_an_engine_given_up_is_repaired_by_up_and_a_failed_repair_leaves_what_still_serves(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A degraded fleet must not be taken down by the attempt to make it whole."""
    fault = tmp_path / "fault"
    fleet.write(decode=f"[{{name: decode}}, {{name: more, args: [--crash-if, {fault}]}}]")
    assert fleet.up().returncode == 0
    before = {unit["name"]: unit["pid"] for unit in fleet.status()["units"]}
    LocalLauncher(FleetFolder(fleet.name).units).stop(["more-0"])
    fault.touch()
    assert "more-0 ended before it was ready" in fleet.up().stderr
    status = fleet.status()
    assert (status["phase"], status["ok"]) == ("up", False)
    assert {unit["name"]: unit["pid"] for unit in status["units"]} == {**before, "more-0": None}
    fault.unlink()
    assert fleet.up().returncode == 0
    after = {unit["name"]: unit["pid"] for unit in fleet.status()["units"]}
    assert {name for name in before if before[name] != after[name]} == {"more-0"}


def test_a_frozen_engine_is_not_called_ready(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    os.kill(fleet.unit("decode-0")["pid"], signal.SIGSTOP)
    status = fleet.run("status", fleet.name)
    assert status.returncode == 3
    assert "decode-0 is stopped by a signal; `kill -CONT " in status.stderr
    assert "unready" in status.stdout


@pytest.mark.code("PD3005")
def test_a_damaged_state_file_stops_everything_but_down(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    (FleetFolder(fleet.name).path / "fleet.json").write_text('{"schema": "pdctl.state/v1", "fleet": 3}')
    for words in (("status", fleet.name), ("up", str(fleet.path))):
        refused = fleet.run(*words)
        assert refused.returncode == 2
        assert "error PD3005" in refused.stderr
        assert "`pdctl down fake`" in refused.stderr
    assert fleet.down().returncode == 0
    assert fleet.left() == []
    assert fleet.up().returncode == 0


def test_a_fleet_file_that_broke_meanwhile_is_no_obstacle_to_down_by_name(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    fleet.path.write_text("{")
    assert fleet.down().returncode == 0
    assert fleet.left() == []


@pytest.mark.code("PD3013")
@pytest.mark.parametrize("command", ["status", "down", "logs"])
def test_a_fleet_of_another_name_is_told_with_the_known_ones(fleet: Fleet, command: str) -> None:
    FleetFolder(fleet.name).units.mkdir(parents=True)
    refused = fleet.run(command, "fakes")
    assert refused.returncode == 3
    assert refused.stderr == "error PD3013  no fleet of the name fakes\n  known here: fake\n"


@pytest.mark.code("PD3015")
def test_logs_of_an_unknown_unit(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    logs = fleet.run("logs", fleet.name, "decode-9")
    assert logs.returncode == 2
    assert "error PD3015  fake has no unit decode-9\n  did you mean" in logs.stderr


def test_logs_follow_what_is_written(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    following = fleet.start("logs", "-f", fleet.name, "decode-0")
    assert following.stdout is not None
    assert following.stdout.readline() == "fake decode begins\n"
    os.kill(fleet.unit("decode-0")["pid"], signal.SIGKILL)
    assert any("ended: killed by SIGKILL" in line for line in following.stdout)
    following.send_signal(signal.SIGINT)
    following.communicate(timeout=60)
    assert following.returncode == 130


def test_a_skipped_phase_is_said_and_not_run(fleet: Fleet) -> None:
    fleet.write(decode="{args: [--misbehave, refuse]}")
    up = fleet.up("--skip-phase", "pairs", "--skip-phase", "completion")
    assert up.returncode == 0, up.stderr
    assert "pairs                as asked" in up.stderr


def test_a_reader_of_the_progress_that_leaves_does_not_take_the_fleet_down(fleet: Fleet) -> None:
    """`pdctl up fleet.yaml 2>&1 >/dev/null | head -1`."""
    up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
    assert up.stderr is not None
    up.stderr.close()
    assert up.wait(60) == 0
    assert fleet.status()["ok"]


def test_a_result_that_cannot_be_printed_changes_nothing_of_what_was_done(fleet: Fleet) -> None:
    """`pdctl up f > /dev/full` brought it up and said 1; scripts that believe it bring it up twice."""
    with Path("/dev/full").open("w") as full:
        up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight", stdout=full)
        _, said = up.communicate(timeout=60)
        assert up.returncode == 0, said
        assert "fake is up at http://" in said
        assert "cannot write standard output: no space left on device" in said
        assert fleet.status()["ok"]
        down = fleet.start("down", fleet.name, "-o", "json", stdout=full)
        _, said = down.communicate(timeout=60)
        assert down.returncode == 0, said
        assert "fake is down; ended" in said


def test_json_goes_to_standard_output_alone(fleet: Fleet) -> None:
    up = fleet.up("-o", "json", "-q")
    assert up.stderr == ""
    document = json.loads(up.stdout)
    assert document["phase"] == "up"
    assert [phase["name"] for phase in document["phases"]] == list(NAMES)


def _phase(fleet: Fleet) -> str | None:
    state = FleetFolder(fleet.name).read()
    return state.phase if state else None
