"""Taking a fleet down: after a failure, and when asked. Needs neither the fleet file nor a sound state."""

import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from pdctl.launch.base import Launcher
from pdctl.launch.local import LocalLauncher
from pdctl.launch.record import StateError
from pdctl.launch.state import DOWN, ROUTER, FleetFolder
from pdctl.launch.steps import run_all
from pdctl.up.signals import undisturbed


def take_down(folder: FleetFolder, launcher: Launcher) -> tuple[str, ...]:
    """End every unit, the router first so that no client meets half a fleet; keep the logs, forget the secret.

    The lock must be held. Returns the units of which something ran. No fault keeps the rest from being taken down;
    raises the gravest at the end: GateError (PD3017), UnwritableError (PD3016).
    """
    names = launcher.known()
    ended: list[str] = []

    def stop(some: Sequence[str]) -> None:
        ended.extend(launcher.stop(some))

    steps = (
        lambda: stop([name for name in names if name == ROUTER]),
        lambda: stop([name for name in names if name != ROUTER]),
        folder.forget_secret,
        lambda: _note_down(folder),
    )
    run_all(folder.path, steps)
    return tuple(sorted(ended))


def bring_down(name: str, root: Path | None = None) -> tuple[str, ...]:
    """Take a fleet down; the units of which something ran. Also where its state is damaged, or it never was up."""
    folder = FleetFolder(name, root)
    if not folder.path.is_dir():
        return ()
    with folder.lock("down"), undisturbed():
        return take_down(folder, LocalLauncher(folder.units))


def may_run(launcher: Launcher, name: str) -> bool:
    """Whether the unit may still run: also where its record cannot be read."""
    try:
        return launcher.status(name).state not in ("absent", "stopped", "failed")
    except StateError:
        return True


def _note_down(folder: FleetFolder) -> None:
    """Record that it is down. A state that cannot be read is set aside: it says nothing that is still true."""
    try:
        state = folder.read()
    except StateError:
        path = folder.path / "fleet.json"
        path.replace(path.with_suffix(".damaged"))
        return
    if state is not None:
        folder.write(replace(state, phase=DOWN, since=time.time()))
