"""A container that was started anew: the same boot, the same state folder, and pids that begin at 1 again."""

import json
import os
import subprocess
import sys

import pytest

from pdctl.launch.record import UnitRecord, read
from pdctl.launch.state import FleetFolder
from tests.integration.up.conftest import ROOT, Fleet

pytestmark = pytest.mark.integration

APART = ["unshare", "-pf" if os.geteuid() == 0 else "-Urpf", "--kill-child", "--mount-proc"]


def apart(module: str, *words: str) -> str:
    """Run a module in a pid namespace of its own; every process in it ends with it."""
    done = subprocess.run(
        [*APART, sys.executable, "-m", module, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_who_has_the_pids_in_the_next_container_is_left_alone(fleet: Fleet) -> None:
    assert "is up at" in apart("tests.integration.up.driver", "up", str(fleet.path), "--skip-phase", "preflight")
    units = FleetFolder(fleet.name).units
    records = {name: read(units / name / "state.json", UnitRecord) for name in ("prefill-0", "decode-0", "router")}
    pids = {pid for record in records.values() if record for pid in (record.pid, record.guard_pid) if pid}
    assert len(pids) == 6

    fleet.path.write_text(fleet.path.read_text().replace("builtin:tiny-hybrid", "/no/such/model"))
    words = f"{','.join(map(str, pids))} -- status {fleet.name} -- up {fleet.path} -- down {fleet.name}"
    then = json.loads(apart("tests.integration.up.stranger", *words.split()))
    assert set(then["alive"]) == pids
    (_, status), (_, up), down = then["said"]
    assert status.count(" lost ") == 3, status
    assert "PD0011" in up, up
    assert down == [0, "fake is down; nothing was running\n"]
