"""How the layout of a running engine is read: what a collector is given, what it answers, and the one over plain HTTP.

An engine family's collector is `collect(running, timeout_s)` in `pdctl/engines/<name>/live.py`.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from pdctl.engines.http import Unreachable, request
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import MAX_BYTES, decode_manifest


class Running(Struct, frozen=True):
    """One engine that should be running, and its ports by purpose."""

    name: str
    role: str
    engine: str
    host: str
    ports: Mapping[str, int]

    @property
    def url(self) -> str:
        """The root of its HTTP endpoints."""
        return f"http://{self.host}:{self.ports['http']}"


class CollectError(Exception):
    """A running engine's layout could not be read, and why."""


#: Asks one engine for its layout, within seconds. Raises CollectError or ManifestError.
Collector = Callable[[Running, float], Manifest]


def over_http(running: Running, timeout_s: float) -> Manifest:
    """`GET /pdctl/layout`, which the reference engine serves."""
    url = f"{running.url}/pdctl/layout"
    try:
        status, body = request(url, timeout_s=timeout_s)
    except Unreachable as error:
        raise CollectError(str(error)) from error
    if status != 200:
        raise CollectError(f"{url}: HTTP {status}")
    return decode_manifest(body[: MAX_BYTES + 1], url)
