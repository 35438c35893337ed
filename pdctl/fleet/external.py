"""What a fleet file must say of a fleet that somebody else started, and what it must not: PD0054, PD0055.

What such a file says of an engine describes it, so that it can be judged. What would only start or place one is refused
by name: a key that does nothing is a mistake to be told.
"""

from collections.abc import Iterator
from typing import Final

from pdctl.errors import FleetFileError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool
from pdctl.fleet.urls import parse_place, parse_url

#: Keys of a pool and of a router that only matter to whoever starts something, and what to write instead.
STARTS: Final = {
    "replicas": "leave it out: there are as many as `urls`",
    "startup_s": "leave it out: nothing is started",
    "ports.http": "leave it out: `urls` say it",
    "router.host": "leave it out: `router.url` says it",
    "router.port": "leave it out: `router.url` says it",
}
_PLACES: Final = ("bootstrap", "side_channel")


def judge_external(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Every fault of what says where a fleet's engines are, in no order."""
    if not loaded.fleet.external:
        yield from _not_external(loaded)
        return
    yield from _starting(loaded)
    taken: dict[str, str] = {}
    router = loaded.fleet.router
    if router.url is not None:
        yield from _url(loaded, "router.url", router.url, taken)
    elif router.log is not None or "router.api_key_env" in loaded:
        hint = "leave `router` out where there is none"
        yield _missing(loaded, "router", "router.url: missing: where the router answers", hint)
    for pool in loaded.pools():
        yield from _pool(loaded, pool, taken)


def _not_external(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    hint = "write `launcher: {kind: external}` for a fleet that is there already"
    for key in ("router.url", "router.log", *(f"{pool.key}.urls" for pool in loaded.pools())):
        if key in loaded:
            yield _missing(loaded, key, f"{key}: pdctl starts this fleet, and chooses where", hint)


def _starting(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    keys = dict(STARTS)
    for pool in loaded.pools():
        keys |= {f"{pool.key}.{key}": hint for key, hint in STARTS.items() if not key.startswith("router.")}
    for key, hint in keys.items():
        if key in loaded:
            message = f"{key}: only matters to who starts an engine, and pdctl does not start this fleet"
            yield FleetFileError(message, where=loaded.where(key), code="PD0055", hint=hint)


def _pool(loaded: LoadedFleet, pool: Pool, taken: dict[str, str]) -> Iterator[FleetFileError]:
    if not pool.urls:
        hint = f"{pool.key}: {{urls: [http://10.0.0.1:30000]}}"
        yield _missing(loaded, pool.key, f"{pool.key}.urls: missing: where each engine answers", hint)
    for index, one in enumerate(pool.urls):
        key = f"{pool.key}.urls.{index}"
        yield from _url(loaded, key, one.url, taken)
        for purpose in _PLACES:
            value = getattr(one, purpose)
            try:
                if value is not None:
                    parse_place(value, "")
            except ValueError as error:
                yield _missing(loaded, f"{key}.{purpose}", f"{key}.{purpose}: found {value!r}, expected {error}", None)


def _url(loaded: LoadedFleet, key: str, text: str, taken: dict[str, str]) -> Iterator[FleetFileError]:
    try:
        url = str(parse_url(text))
    except ValueError as error:
        hint = "one list item an engine" if "," in text else None
        shown = text if "@" not in text else f"…@{text.rpartition('@')[2]}"
        yield _missing(loaded, key, f"{key}: found {shown!r}, expected {error}", hint)
        return
    other = taken.setdefault(url, key)
    if other != key:
        hint = f"given at {loaded.where(other)}; each engine has a URL of its own"
        yield _missing(loaded, key, f"{key}: {url} is already {other}", hint)


def _missing(loaded: LoadedFleet, key: str, message: str, hint: str | None) -> FleetFileError:
    return FleetFileError(message, where=loaded.where(key), code="PD0054", hint=hint)
