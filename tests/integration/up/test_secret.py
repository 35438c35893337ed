"""The secret of a fleet: in the environment of those that move state, in its own file, and nowhere else."""

import os
import signal
from pathlib import Path

import pytest

from pdctl.launch.state import FleetFolder
from tests.integration.up.conftest import Fleet, until

pytestmark = pytest.mark.integration


def drawn(fleet: Fleet) -> str:
    return (FleetFolder(fleet.name).path / "secret").read_text().strip()


def given(fleet: Fleet, unit: str) -> str | None:
    """What a unit's own process has."""
    content = Path(f"/proc/{fleet.unit(unit)['pid']}/environ").read_bytes().decode()
    return dict(pair.partition("=")[::2] for pair in content.split("\0")).get("PDCTL_TRANSFER_SECRET")


def test_it_is_handed_over_by_environment_and_told_to_nobody(fleet: Fleet) -> None:
    up = fleet.up("-v")
    assert up.returncode == 0, up.stderr
    assert "· starts decode-0: " in up.stderr
    assert "/health: HTTP 200\n" in up.stderr
    secret = drawn(fleet)
    assert (given(fleet, "prefill-0"), given(fleet, "decode-0"), given(fleet, "router")) == (secret, secret, None)
    assert all(secret not in Path(f"/proc/{pid}/cmdline").read_text() for pid in fleet.left())

    said = [
        up,
        *(fleet.run(*words) for words in (["up", str(fleet.path), "--plan"], ["status", fleet.name, "-o", "json"])),
    ]
    assert all(secret not in done.stdout + done.stderr for done in said)
    assert "PDCTL_TRANSFER_SECRET='…'" in said[1].stdout
    files = [path for path in FleetFolder(fleet.name).path.rglob("*") if path.is_file() and path.name != "secret"]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]

    before = fleet.unit("decode-0")["pid"]
    os.kill(before, signal.SIGKILL)
    until(lambda: fleet.unit("decode-0")["pid"] not in (None, before))
    until(lambda: given(fleet, "decode-0") == secret)
    assert fleet.down().returncode == 0
    assert not (FleetFolder(fleet.name).path / "secret").exists()


def test_an_up_that_failed_leaves_none_and_the_next_draws_another(fleet: Fleet) -> None:
    fleet.write(decode="{args: [--misbehave, crash]}")
    assert fleet.up().returncode == 3
    assert not (FleetFolder(fleet.name).path / "secret").exists()


@pytest.mark.parametrize("lost", [False, True])
def test_adopted_units_and_new_ones_share_it(fleet: Fleet, lost: bool) -> None:
    """Whoever has another than the fleet's is not adopted: it could not speak to those that start now."""
    fleet.write(decode="{args: [--misbehave, refuse]}")
    assert fleet.up("--keep").returncode == 3
    first = drawn(fleet)
    if lost:
        (FleetFolder(fleet.name).path / "secret").unlink()
    fleet.write()
    up = fleet.up()
    assert up.returncode == 0, up.stderr
    assert ("adopted" in up.stderr) is not lost
    assert (drawn(fleet) == first) is not lost
    assert given(fleet, "prefill-0") == given(fleet, "decode-0") == drawn(fleet)
    assert fleet.down().returncode == 0
