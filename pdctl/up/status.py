"""What is true of a fleet now: the recorded state, the process table and the units' own answers, put together."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pdctl.engines.http import answers
from pdctl.engines.live import Running
from pdctl.fleet.keys import key_in
from pdctl.fleet.urls import parse_url
from pdctl.launch.base import Launcher, UnitStatus
from pdctl.launch.listening import listeners
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import DOWN, UP, FleetFolder, UnitEntry
from pdctl.running import EXTERNAL, RunningFleet, find
from pdctl.running.ways import Carried, carried
from pdctl.up.answered import had_answered, note_answer
from pdctl.up.opened import PortView, open_to_others, ports_of
from pdctl.up.parallel import each

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.up.heard import Heard

ABSENT, READY = "absent", "ready"
AT_ONCE = 64
"""Members of a fleet that are asked at one time; each takes its deadline at most."""
UNCONTAINED = (
    "no cgroup can be made here: if a guard is killed, what left its unit's session and cleared its environment is not"
    " found by `down`"
)


@dataclass(frozen=True)
class UnitView:
    """A unit as `pdctl status` shows it."""

    name: str
    role: str
    pid: int | None
    port: int
    state: str
    restarts: int | None
    """None where nobody here counts them."""
    last_exit: str | None
    since: float | None
    contained: bool | None = None
    """It lives in a cgroup of its own; None where it does not run."""
    frozen: int | None = None
    """The pid of its process, or its guard's, that a signal has stopped."""
    ports: tuple[PortView, ...] = ()
    """Declared ones, and all that it listens on."""
    url: str = ""
    heard: "Heard | None" = None
    """What it answered, where it was asked more than whether it is ready: of fleets that pdctl did not start."""


@dataclass(frozen=True)
class FleetView:
    """A fleet as `pdctl status` shows it."""

    fleet: str
    phase: str
    busy: bool
    """An `up` or `down` is at work on it."""
    url: str | None
    units: tuple[UnitView, ...]
    since: float | None = None
    """Since when it is in its phase, seconds since 1970."""
    at: float = 0.0
    """When it was looked at, seconds since 1970."""
    launcher: str = "local"
    others: tuple[str, ...] = ()
    """Addresses on the router's list that are none of its engines'."""
    carried: Mapping[str, Carried] = field(default_factory=dict)
    """Of engines that were told of the transfer core, by name, which way each of their pairs takes."""

    @property
    def ok(self) -> bool:
        """Whether it is up, with every unit ready."""
        return self.phase in (UP, EXTERNAL) and all(unit.state == READY for unit in self.units)

    @property
    def notes(self) -> list[str]:
        """What a person should know beside the table."""
        notes = [
            f"{unit.name} is stopped by a signal; `kill -CONT {unit.frozen}` lets it go on"
            for unit in self.units
            if unit.frozen
        ]
        for unit in self.units:
            if unit.heard is not None and unit.heard.why:
                notes.append(f"{unit.name}: {unit.heard.why}")
            if unit.heard is not None and unit.heard.hidden:
                notes.append(f"{unit.name}: not shown: {'; '.join(unit.heard.hidden)}")
        notes += (note for one in self.carried.values() for note in one.notes)
        if self.others:
            notes.append(f"the router also has {', '.join(self.others[:8])}, which the file does not name")
        if self.busy:
            notes.append("an `up` or `down` is at work on it")
        elif self.phase not in (UP, DOWN, ABSENT, EXTERNAL):
            notes.append(f"`up` ended in {self.phase}; run it again, or `down`")
        if opened := [one for unit in self.units for one in open_to_others(unit.name, unit.ports)]:
            more = f" and {len(opened) - 8} more" if len(opened) > 8 else ""
            notes.append(f"open to whoever reaches this host, without a key: {', '.join(opened[:8])}{more}")
        if any(unit.contained is False for unit in self.units):
            notes.append(UNCONTAINED)
        return notes

    def document(self) -> dict[str, Any]:
        """The document of `status -o json`."""
        units = [
            {
                "name": unit.name,
                "role": unit.role,
                "pid": unit.pid,
                "port": unit.port,
                "state": unit.state,
                "restarts": unit.restarts,
                "last_exit": unit.last_exit,
                "contained": unit.contained,
                "ports": [port.document() for port in unit.ports],
                "url": unit.url or None,
                "answers": unit.heard.document() if unit.heard is not None else None,
                "carried": self.carried[unit.name].document() if unit.name in self.carried else None,
            }
            for unit in self.units
        ]
        return {
            "fleet": self.fleet,
            "launcher": self.launcher,
            "phase": self.phase,
            "units": units,
            "ok": self.ok,
            "busy": self.busy,
            "url": self.url,
            "at": round(self.at, 3),
            "notes": self.notes,
        }


def fleet_status(name: str) -> FleetView:
    """Look at a fleet of ours. Raises StateError (PD3005) for damaged records."""
    return status_of(find(name))


def status_of(fleet: RunningFleet) -> FleetView:
    """Look at a fleet, whoever started it. Raises StateError (PD3005) for damaged records."""
    if fleet.loaded is not None:
        return _external(fleet, fleet.loaded)
    folder, state = FleetFolder(fleet.name), fleet.state
    if state is None:
        return FleetView(fleet.name, ABSENT, folder.is_locked(), None, (), at=time.time())
    launcher = LocalLauncher(folder.units)
    units = tuple(each(lambda entry: _view(launcher, entry), state.units))
    busy, ways = folder.is_locked(), {} if state.phase == DOWN else _carried(fleet.members, units)
    return FleetView(fleet.name, state.phase, busy, state.url, units, state.since, time.time(), carried=ways)


def _carried(members: Sequence[Running], units: Sequence[UnitView]) -> dict[str, Carried]:
    """Who was told of the core is asked which way its pairs take; a fleet without such engines is asked nothing."""
    ready = [unit.name for unit in units if unit.state == READY]
    return carried(members, ready, lambda call, ones: each(call, ones, AT_ONCE))


def _external(fleet: RunningFleet, loaded: "LoadedFleet") -> FleetView:
    """Everyone is asked at once; nothing is known but what they answer."""
    from pdctl.up.heard import hear
    from pdctl.up.routed import others, with_routes

    members, router = fleet.members, fleet.router
    answers = each(lambda one: hear(one, loaded), members, AT_ONCE)
    heard = {one.name: answer for one, answer in zip(members, answers, strict=True)}
    workers = heard[router.name].workers if router is not None else None
    if workers is not None:
        heard = with_routes(members, heard, workers)
    units = tuple(_heard(one, heard[one.name]) for one in members)
    url = router.url if router is not None else None
    unknown = others(members, workers or ())
    ways = _carried(members, units)
    return FleetView(fleet.name, EXTERNAL, False, url, units, None, time.time(), fleet.launcher, unknown, ways)


def _heard(one: Running, heard: "Heard") -> UnitView:
    url = str(one.url)
    return UnitView(one.name, one.role, None, parse_url(url).port, heard.state, None, None, None, url=url, heard=heard)


def _view(launcher: Launcher, entry: UnitEntry) -> UnitView:
    status = launcher.status(entry.name)
    return UnitView(
        entry.name,
        entry.role,
        status.pid,
        entry.ports["http"],
        _state(launcher, status, entry),
        status.restarts,
        status.last_exit,
        status.since,
        status.contained if status.pid is not None else None,
        status.frozen,
        ports_of(entry, listeners(status.pid)),
        entry.url,
    )


def _state(launcher: Launcher, status: UnitStatus, entry: UnitEntry) -> str:
    if status.state != "running":
        return status.state
    if answers(entry.url + entry.ready_path, key=key_in(entry.key_env)):
        note_answer(launcher, status)
        return "ready"
    return "unready" if had_answered(launcher, entry.name, status) else "starting"
