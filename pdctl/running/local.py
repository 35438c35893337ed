"""A fleet that pdctl started on this machine: its members by the state that `up` left."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pdctl.engines.live import Running
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import DOWN, FleetFolder, UnitEntry
from pdctl.running.fleet import RunningFleet

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool


def by_name(name: str) -> RunningFleet:
    """The fleet as its state has it. Raises StateError (PD3005), GateError (PD3014)."""
    folder = FleetFolder(name)
    state = folder.read()
    launcher = LocalLauncher(folder.units)
    if state is None:  # what an `up` left that came to nothing has logs all the same
        left = tuple(Running(one, "", "", None, log=launcher.log(one)) for one in launcher.known())
        return RunningFleet(name, "local", left)
    return RunningFleet(name, "local", tuple(_member(one, launcher) for one in state.units), state)


def _member(entry: UnitEntry, launcher: LocalLauncher) -> Running:
    places = {purpose: (entry.host, port) for purpose, port in entry.ports.items() if purpose != "http"}
    log = launcher.log(entry.name)
    key, path = entry.key_env, entry.ready_path
    return Running(entry.name, entry.role, entry.engine, entry.url, places, key, path, log, core=entry.core)


def engines_of(loaded: "LoadedFleet") -> Iterator[Running]:
    """Every engine of a file where `up` recorded it, or where the file fixes its ports."""
    folder = FleetFolder(loaded.fleet.name)
    state = folder.read()
    recorded = {unit.name: unit for unit in state.units} if state is not None and state.phase != DOWN else {}
    for pool in loaded.pools():
        engine = pool.engine or loaded.fleet.engine
        for index, name in enumerate(pool.members):
            host, ports = _place(pool, index)
            if name in recorded:
                host, ports = recorded[name].host, recorded[name].ports
            url = f"http://{host}:{ports['http']}" if "http" in ports else None
            places = {purpose: (host, port) for purpose, port in ports.items() if purpose != "http"}
            yield Running(name, pool.role, engine, url, places, pool.api_key_env, core=pool.core)


def _place(pool: "Pool", index: int) -> tuple[str, dict[str, int]]:
    host, step = pool.place(index)
    return "127.0.0.1" if host == "localhost" else host, pool.given_ports(step)
