"""Every fleet that this user's state folder knows, whole or not; what cannot be read is said, not left out."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl.errors import PdctlError
from pdctl.launch.state import known_fleets
from pdctl.up.parallel import each
from pdctl.up.status import FleetView, fleet_status

UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Listed:
    """A fleet as `pdctl ps` shows it. `problem`: why nothing more is known of it."""

    fleet: str
    phase: str
    ready: int = 0
    total: int = 0
    ok: bool = False
    busy: bool = False
    url: str | None = None
    since: float | None = None
    problem: str | None = None

    def document(self) -> dict[str, Any]:
        """One item of `ps -o json`."""
        return {
            "fleet": self.fleet,
            "phase": self.phase,
            "units": {"ready": self.ready, "total": self.total},
            "ok": self.ok,
            "busy": self.busy,
            "url": self.url,
            "since": self.since,
            "problem": self.problem,
        }


def all_fleets(root: Path | None = None) -> tuple[Listed, ...]:
    """All of them by name, asked at once. Raises UnreadableError (PD0042) where the folder itself cannot be read."""
    return tuple(each(_listed, known_fleets(root)))


def _listed(name: str) -> Listed:
    try:
        view = fleet_status(name)
    except PdctlError as error:
        return Listed(name, UNREADABLE, problem=error.message)
    except OSError as error:
        return Listed(name, UNREADABLE, problem=f"cannot be read: {(error.strerror or str(error)).lower()}")
    return of_view(view)


def of_view(view: FleetView) -> Listed:
    """A fleet that could be read. The secret and the logs of one that never came up make a folder as well: absent."""
    ready = sum(unit.state == "ready" for unit in view.units)
    return Listed(view.fleet, view.phase, ready, len(view.units), view.ok, view.busy, view.url, view.since)


def age(since: float | None, now: float | None = None) -> str:
    """`3 min`; a dash where it is not known."""
    if not since:
        return "–"
    seconds = max(0, int((now or time.time()) - since))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
