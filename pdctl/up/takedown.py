"""Taking a fleet down: after a failure, and when asked. Needs neither the fleet file nor a sound state."""

import time
from pathlib import Path

from msgspec.structs import replace

from pdctl.launch.base import Launcher
from pdctl.launch.local import LocalLauncher
from pdctl.launch.record import StateError
from pdctl.launch.state import DOWN, ROUTER, FleetFolder
from pdctl.up.signals import undisturbed


def take_down(folder: FleetFolder, launcher: Launcher) -> None:
    """End every unit, the router first so that no client meets half a fleet; keep the logs, forget the secret.

    The lock must be held.
    """
    names = launcher.known()
    launcher.stop([name for name in names if name == ROUTER])
    launcher.stop([name for name in names if name != ROUTER])
    folder.forget_secret()
    state = folder.read()
    if state is not None:
        folder.write(replace(state, phase=DOWN, since=time.time()))


def bring_down(name: str, root: Path | None = None) -> tuple[str, ...]:
    """Take a fleet down; the units that were running. Also where its state is damaged, or it never was up."""
    folder = FleetFolder(name, root)
    if not folder.path.is_dir():
        return ()
    launcher = LocalLauncher(folder.units)
    with folder.lock("down"):
        running = tuple(unit for unit in launcher.known() if may_run(launcher, unit))
        _set_damaged_aside(folder)
        with undisturbed():
            take_down(folder, launcher)
    return running


def may_run(launcher: Launcher, name: str) -> bool:
    """Whether the unit may still run: also where its record cannot be read."""
    try:
        return launcher.status(name).state not in ("absent", "stopped", "failed")
    except StateError:
        return True


def _set_damaged_aside(folder: FleetFolder) -> None:
    try:
        folder.read()
    except StateError:
        path = folder.path / "fleet.json"
        path.replace(path.with_suffix(".damaged"))
