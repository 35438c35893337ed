"""How the layout of a running engine is read: what a collector is given, what it answers, and the one over plain HTTP.

An engine family's collector is `collect(running, timeout_s)` in `pdctl/engines/<name>/live.py`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from pdctl.engines.http import LIMIT_BYTES, Unreachable, excerpt, request
from pdctl.errors import ConfigError, MalformedConfigError
from pdctl.fleet.keys import key_in
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plugins.peer import ROUTE

ABSENT: Final = (404, 405)
"""What a server says of a route that it does not have."""
LAYOUT_BYTES: Final = 2 * LIMIT_BYTES
"""A hundred times the layout of a model of 48 layers."""


class Running(Struct, frozen=True):
    """One engine, or the router, that should be running: where it is reached, whoever started it."""

    name: str
    role: str
    engine: str
    """Its family; a router's kind; empty where nobody says."""
    url: str | None
    """The root of its HTTP endpoints; None where nobody knows its port."""
    places: Mapping[str, tuple[str, int]] = {}
    """Host and port of what else it has, by purpose: bootstrap, side_channel."""
    key_env: str | None = None
    """The environment variable with the key that it asks for."""
    ready_path: str = "/health"
    log: Path | None = None
    model: Path | None = None
    """A folder with its model's config on this host, for where its own path is none."""
    core: str = "engine"
    """Who was to carry its state: engine, pdctl, auto."""

    @property
    def key(self) -> str | None:
        """What it asks for as a bearer token; None for nothing, or where it is not known here."""
        return key_in(self.key_env)

    @property
    def unkeyed(self) -> str | None:
        """What to say where its key is not known here."""
        if self.key_env is None or self.key is not None:
            return None
        return f"it asks for a key, and the environment variable {self.key_env} is not set here"


def config_of(running: Running, path: str) -> tuple[Mapping[str, Any], str]:
    """The model's config where the engine says it lies, if that is on this host, else where it is known here.

    Raises ConfigError.
    """
    from pdctl.derive.source import read_config

    try:
        return read_config(Path(path))
    except MalformedConfigError:
        raise
    except ConfigError:
        if running.model is None:
            raise
        return read_config(running.model)


class CollectError(Exception):
    """A running engine's layout could not be read, and why."""


#: Asks one engine for its layout, within seconds. Raises CollectError or ManifestError.
Collector = Callable[[Running, float], Manifest]


def over_http(running: Running, timeout_s: float) -> Manifest:
    """`GET /pdctl/layout`, which the reference engine serves."""
    url = f"{running.url}{ROUTE}"
    layout = from_url(url, timeout_s, running.key)
    if layout is None:
        raise CollectError(f"{url}: no layout is served there")
    return layout


def from_url(url: str, deadline_s: float, key: str | None = None) -> Manifest | None:
    """The layout at a URL, None where nothing like it is served there. Raises CollectError or ManifestError."""
    try:
        status, body = request(url, key=key, deadline_s=deadline_s, limit_bytes=LAYOUT_BYTES)
    except Unreachable as failure:
        raise CollectError(str(failure)) from failure
    if status in ABSENT:
        return None
    if status != 200:
        raise CollectError(f"{url}: HTTP {status}: {excerpt(body)}")
    return decode_manifest(body, url)
