"""`up` of a fleet that is up, and `restart`: only what differs is touched, and what serves survives every failure."""

import json
import os
import signal
from pathlib import Path

import pytest

from pdctl.engines.http import request
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import FleetFolder
from tests.integration.up.conftest import Fleet, until

pytestmark = pytest.mark.integration


def pids(fleet: Fleet) -> dict[str, int | None]:
    return {unit["name"]: unit["pid"] for unit in fleet.status()["units"]}


def changed(before: dict[str, int | None], after: dict[str, int | None]) -> set[str]:
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}


def test_whole_and_unchanged_nothing_is_touched(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    before = fleet.status()
    again = fleet.up()
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"fake is already up at {before['url']}, nothing to change\n"
    assert fleet.status() | {"at": before["at"]} == before
    document = json.loads(fleet.up("-o", "json").stdout)
    assert [change["action"] for change in document["changes"]] == ["keep", "keep", "keep"]
    assert "is up; nothing to change" in fleet.up("--plan").stdout


def test_a_changed_file_restarts_what_differs_starts_what_is_new_and_ends_what_is_gone(fleet: Fleet) -> None:
    fleet.write(decode="[{name: one, env: {SOME_KEY: hunter2}}, {name: two}]")
    assert fleet.up().returncode == 0
    before = pids(fleet)
    fleet.write(decode="[{name: one, env: {SOME_KEY: hunter3}}, {name: three}]")
    plan = fleet.run("up", str(fleet.path), "--plan")
    assert "this would change" in plan.stdout
    assert pids(fleet) == before, "a plan touches nothing"
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    for said in (plan.stdout, up.stderr):
        assert "~ one-0    env SOME_KEY has another value" in said
        assert "+ three-0  new" in said
        assert "- two-0    not in the fleet file" in said
        assert "~ router   --decode: http://127.0.0.1:" in said
        assert "= prefill-0" in said
        assert "hunter" not in said
    after = pids(fleet)
    assert set(after) == {"prefill-0", "one-0", "three-0", "router"}
    assert changed(before, after) == {"one-0", "router"}
    assert fleet.status()["ok"]
    assert LocalLauncher(FleetFolder(fleet.name).units).status("two-0").state == "stopped"
    kept = [path for path in FleetFolder(fleet.name).path.rglob("*.json") if b"hunter" in path.read_bytes()]
    assert kept == []


def test_what_was_given_up_is_said_and_started_again(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    before = pids(fleet)
    LocalLauncher(FleetFolder(fleet.name).units).stop(["decode-0"])
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    assert "+ decode-0  stopped" in up.stderr
    assert changed(before, pids(fleet)) == {"decode-0"}


def test_what_hangs_is_unready_and_restarted(fleet: Fleet) -> None:
    """It runs just as planned, so that nothing but its silence tells."""
    assert fleet.up().returncode == 0
    before = pids(fleet)
    os.kill(before["decode-0"] or 0, signal.SIGSTOP)
    assert "unready" in fleet.run("status", fleet.name).stdout
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    assert "~ decode-0  it answered before, and does not now" in up.stderr
    assert changed(before, pids(fleet)) == {"decode-0"}


@pytest.mark.parametrize("fault", ["crash", "refuse"])
def test_a_change_that_fails_leaves_what_serves_and_the_next_up_mends_it(fleet: Fleet, fault: str) -> None:
    fleet.write(decode="[{name: one}, {name: two}]")
    assert fleet.up().returncode == 0
    before = pids(fleet)
    fleet.write(decode=f"[{{name: one}}, {{name: two, args: [--misbehave, {fault}]}}]")
    assert fleet.up().returncode == 3
    status = fleet.status()
    assert (status["phase"], status["ok"]) == ("up", False)
    assert pids(fleet) == {**before, "two-0": None}
    fleet.write(decode="[{name: one}, {name: two}]")
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    assert changed(before, pids(fleet)) == {"two-0"}


def test_a_change_that_cannot_be_is_refused_before_anything_is_ended(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    before = fleet.status()
    fleet.write(decode="{page_size: 32, env: {A: '1'}}")
    up = fleet.run("up", str(fleet.path))
    assert "error PD3020" in up.stderr
    assert fleet.status() | {"at": before["at"]} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("end", ["up", "down"])
def test_an_interrupted_change_is_handled_by_the_next_command(fleet: Fleet, number: signal.Signals, end: str) -> None:
    fleet.write(decode="[{name: one}, {name: two}]")
    assert fleet.up().returncode == 0
    before = pids(fleet)
    fleet.write(decode="[{name: one}, {name: two, args: [--misbehave, hang]}]")
    up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
    until(lambda: _phase(fleet) == "pairs")
    up.send_signal(number)
    _, err = up.communicate(timeout=60)
    if number == signal.SIGINT:
        assert up.returncode == 130
        assert "error PD3001  interrupted; what was not restarted yet still serves" in err
        assert fleet.status()["phase"] == "up"
    assert {name: pid for name, pid in pids(fleet).items() if name != "two-0"} == {
        name: pid for name, pid in before.items() if name != "two-0"
    }
    if end == "down":
        assert fleet.down().returncode == 0
        assert fleet.left() == []
        return
    fleet.write(decode="[{name: one}, {name: two}]")
    again = fleet.up()
    assert again.returncode == 0, again.stderr
    assert changed(before, pids(fleet)) == {"two-0"}
    assert fleet.status()["ok"]


def test_a_change_killed_in_any_phase_is_taken_up_by_the_next(fleet: Fleet) -> None:
    """Whatever was ended, started or taken off the router's list just then."""
    fleet.write(decode="[{name: one}, {name: two}]")
    assert fleet.up().returncode == 0
    kept = pids(fleet)["one-0"]
    for number, phase in enumerate(("core", "prefill", "decode", "router"), 1):
        fleet.write(
            prefill=f"{{env: {{N: '{number}'}}}}", decode=f"[{{name: one}}, {{name: two, env: {{N: '{number}'}}}}]"
        )
        up = fleet.start("up", str(fleet.path), "--skip-phase", "preflight")
        until(lambda phase=phase, up=up: _phase(fleet) == phase or up.poll() is not None)
        up.kill()
        up.communicate(timeout=60)
    again = fleet.up()
    assert again.returncode == 0, again.stderr
    assert fleet.status()["ok"]
    assert pids(fleet)["one-0"] == kept, "what did not differ was never touched"
    assert len(fleet.left()) == 2 * len(pids(fleet)), "one guard and one process each"
    assert fleet.down().returncode == 0
    assert fleet.left() == []


@pytest.mark.code("PD3003")
def test_another_file_of_the_same_name_is_refused_while_the_first_is_there(fleet: Fleet, tmp_path: Path) -> None:
    assert fleet.up().returncode == 0
    before = fleet.status()
    other = tmp_path / "other.yaml"
    other.write_text(fleet.path.read_text())
    refused = fleet.run("up", str(other))
    assert refused.returncode == 3
    assert f"error PD3003  fake is already up at {before['url']}, from {fleet.path}\n" in refused.stderr
    assert fleet.status() | {"at": before["at"]} == before
    fleet.path.unlink()
    assert "nothing to change" in fleet.run("up", str(other)).stdout, "a file that was moved"


def test_restart_of_one_unit_and_of_all(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    before = pids(fleet)
    one = fleet.run("restart", fleet.name, "decode-0")
    assert one.returncode == 0, one.stderr
    assert "~ decode-0  as asked" in one.stderr
    assert changed(before, middle := pids(fleet)) == {"decode-0"}
    every = fleet.run("restart", str(fleet.path), "-o", "json")
    assert every.returncode == 0, every.stderr
    assert [change["action"] for change in json.loads(every.stdout)["changes"]] == ["restart"] * 3
    assert changed(middle, pids(fleet)) == {"prefill-0", "decode-0", "router"}
    assert fleet.status()["ok"]


@pytest.mark.parametrize("kind", ["sglang-router", "vllm-router"])
def test_a_real_router_gives_requests_to_what_was_restarted(fleet: Fleet, kind: str) -> None:
    """One takes on again what it let go, the other never lets go: both serve with all of their workers at the end.

    vllm-router says to these engines what they do not understand (PD1048), so nothing is asked of the pair before.
    """
    fleet.write(decode="{replicas: 2}", more=f"router: {{kind: {kind}}}\n")
    fleet.path.write_text(fleet.path.read_text().replace("backend: mooncake", "backend: nixl"))
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    before = pids(fleet)
    restarted = fleet.run("restart", fleet.name, "decode-0", "--drain", "1", "--skip-phase", "preflight")
    assert restarted.returncode == 0, restarted.stderr
    assert ("the router cannot be told" in restarted.stderr) == (kind == "vllm-router")
    assert changed(before, pids(fleet)) == {"decode-0"}
    again = fleet.up()
    assert "nothing to change" in again.stdout, "all workers are on its list, and healthy"


def test_an_interrupt_while_requests_are_waited_for_changes_nothing(fleet: Fleet) -> None:
    """What was taken off the router's list is put on it again."""
    fleet.write(decode="{args: [--misbehave, busy]}", more="router: {kind: sglang-router}\n")
    assert fleet.up().returncode == 0
    before = fleet.status()
    decode = next(unit["port"] for unit in before["units"] if unit["name"] == "decode-0")

    def is_listed() -> bool:
        return f":{decode}" in str(request(f"{before['url']}/workers", key=FleetFolder(fleet.name).control_key()))

    assert is_listed()
    fleet.write(decode="{args: [--misbehave, busy], env: {A: '1'}}", more="router: {kind: sglang-router}\n")
    changing = fleet.start("up", str(fleet.path), "--skip-phase", "preflight", "--drain", "90")
    until(lambda: not is_listed())
    changing.send_signal(signal.SIGINT)
    _, err = changing.communicate(timeout=60)
    assert changing.returncode == 130
    assert "the router takes on decode-0" in err
    assert "error PD3001  interrupted; nothing was changed" in err
    assert is_listed()
    assert fleet.status() | {"at": before["at"]} == before


@pytest.mark.code("PD3021", "PD3015", "PD3013")
def test_restart_refuses_what_it_does_not_know_and_what_up_is_for(fleet: Fleet) -> None:
    FleetFolder(fleet.name).units.mkdir(parents=True)
    down = fleet.run("restart", fleet.name)
    assert down.returncode in (2, 3)
    down = fleet.run("restart", str(fleet.path))
    assert (down.returncode, "error PD3013  fake is not up" in down.stderr) == (3, True)
    assert fleet.up().returncode == 0
    before = fleet.status()
    unknown = fleet.run("restart", fleet.name, "decod-0")
    assert unknown.returncode == 2
    assert 'error PD3015  fake has no unit decod-0\n  did you mean "decode-0"?' in unknown.stderr
    fleet.write(decode="{env: {A: '1'}}")
    changed_file = fleet.run("restart", fleet.name, "prefill-0")
    assert changed_file.returncode == 3
    assert "error PD3021  the fleet file has changed since the fleet was brought up\n" in changed_file.stderr
    assert "decode-0: env A is new" in changed_file.stderr
    assert fleet.status() | {"at": before["at"]} == before


def _phase(fleet: Fleet) -> str | None:
    state = FleetFolder(fleet.name).read()
    return state.phase if state else None
