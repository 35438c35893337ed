"""A fleet that somebody else started: its members by the URLs of its file. No state is read, and none is written."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.engines.live import Running
from pdctl.fleet.urls import parse_place, parse_url
from pdctl.launch.state import ROUTER
from pdctl.routers import READY_PATH, ROUTERS
from pdctl.running.fleet import RunningFleet

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool


def by_file(loaded: "LoadedFleet") -> RunningFleet:
    """The fleet as its file describes it."""
    router = loaded.fleet.router
    members = tuple(engines_of(loaded))
    if router.url is not None:
        url, log = str(parse_url(router.url)), _log(loaded, router.log)
        path = READY_PATH if router.kind in ROUTERS else "/health"
        members += (Running(ROUTER, ROUTER, router.kind, url, {}, router.api_key_env, path, log),)
    return RunningFleet(loaded.fleet.name, "external", members, loaded=loaded)


def engines_of(loaded: "LoadedFleet") -> Iterator[Running]:
    """Every engine of the file."""
    for pool in loaded.pools():
        engine = pool.engine or loaded.fleet.engine
        for index, name in enumerate(pool.members):
            one = pool.urls[index]
            url, log = parse_url(one.url), _log(loaded, one.log)
            places = dict(_places(pool, index, url.host))
            yield Running(name, pool.role, engine, str(url), places, pool.api_key_env, log=log, core=pool.core)


def _places(pool: "Pool", index: int, host: str) -> Iterator[tuple[str, tuple[str, int]]]:
    """What the engine's own entry says, else the pool's ports, which count up on a host that has several."""
    one, step = pool.urls[index], pool.place(index)[1]
    given = pool.given_ports(step)
    own = {"bootstrap": one.bootstrap, "side_channel": one.side_channel}
    for purpose, value in {**given, **{name: value for name, value in own.items() if value is not None}}.items():
        yield purpose, parse_place(value, host)


def _log(loaded: "LoadedFleet", path: str | None) -> Path | None:
    """A path of this machine, a relative one beside the fleet file."""
    return loaded.path.parent / Path(path).expanduser() if path is not None else None
