"""A disk without room: said with a code, nothing left behind, and `down` still takes down."""

import pytest

from pdctl.launch.state import FleetFolder
from tests.integration.up.conftest import Fleet

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
