"""A disk without room: said with a code, nothing left behind, and `down` still takes down."""

import json
import os
import subprocess
import sys

import pytest

from pdctl.launch.state import FleetFolder, state_root
from tests.integration.up.conftest import ROOT, Fleet

pytestmark = [pytest.mark.integration, pytest.mark.code("PD3016")]


@pytest.mark.parametrize("disk", [0, 300, 900, 1300])
def test_an_up_that_cannot_keep_its_state_leaves_nothing(fleet: Fleet, disk: int) -> None:
    """At the first word of it, or in the middle, when units run already."""
    up = fleet.run("up", str(fleet.path), "--skip-phase", "preflight", disk=disk)
    assert up.returncode == 1, up.stderr
    assert "error PD3016" in up.stderr
    assert "make room" in up.stderr
    assert fleet.left() == []
    assert fleet.up().returncode == 0
    assert fleet.down().returncode == 0


def test_down_ends_what_runs_all_the_same(fleet: Fleet) -> None:
    assert fleet.up().returncode == 0
    down = fleet.run("down", fleet.name, disk=0)
    assert down.returncode == 1
    assert "error PD3016" in down.stderr
    assert fleet.left() == []
    state = FleetFolder(fleet.name).read()
    assert state is not None, "the state that could not be replaced is still whole"
    assert fleet.down().returncode == 0


def on_a_full_disk(fleet: Fleet, kib: int, *steps: str) -> list[tuple[int, str, int]]:
    """The steps on a disk of `kib` KiB, for guards and units, too: status, words and what was left after each."""
    folder = state_root().parent
    folder.mkdir()
    apart = ["unshare", "-m" if os.geteuid() == 0 else "-Urm"]
    words = [sys.executable, "-m", "tests.integration.up.full_disk", str(folder), str(kib), str(fleet.path), fleet.name]
    done = subprocess.run([*apart, *words, *steps], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return [(status, text, left) for status, text, left in json.loads(done.stdout)]


def test_down_leaves_nothing_on_a_disk_that_is_full_for_everyone(fleet: Fleet) -> None:
    """The guards cannot write that they ended, nor can the lock's file be made."""
    steps = ("up", "unlock", "fill", "down", "fill", "down", "room", "down")
    up, _, _, down, _, again, _, roomy = on_a_full_disk(fleet, 160, *steps)
    assert (up[0], up[2]) == (0, 6), up
    assert (down[0], down[2]) == (1, 0), down
    assert "error PD3016" in down[1]
    assert (again[0], again[2]) == (1, 0)
    assert (roomy[0], roomy[1]) == (0, "fake is down; nothing was running\n")


@pytest.mark.parametrize("kib", [20, 32, 44, 64])
def test_an_up_on_a_disk_that_fills_up_leaves_nothing(fleet: Fleet, kib: int) -> None:
    [up] = on_a_full_disk(fleet, kib, "up")
    assert (up[0], up[2]) == (1, 0), up
    assert "error PD3016" in up[1]  # the fleet's, as guards and units live on without their log
