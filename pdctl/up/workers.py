"""The list of workers that a router keeps, as smg and sglang-router serve it: what is on it, off it, on it again."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct, ValidationError, convert

from pdctl.engines.http import Unreachable, get_json, request
from pdctl.routers import Backend

CALL_S = 5.0


class Worker(Struct, frozen=True):
    """One engine on a router's list."""

    url: str
    id: str | None = None
    worker_type: str | None = None
    is_healthy: bool | None = None
    load: int | None = None
    """Requests under way, as far as the router counts them."""
    status: str | None = None
    bootstrap_port: int | None = None

    @property
    def serves(self) -> bool:
        """Whether it is given requests now."""
        return self.is_healthy is not False and self.status in (None, "ready")


class _List(Struct, frozen=True):
    workers: tuple[Worker, ...]


class Workers:
    """The list of the router at `url`."""

    def __init__(self, url: str, key: str | None = None, call_s: float = CALL_S) -> None:
        self._url = f"{url}/workers"
        self._key = key
        self._call_s = call_s

    def listed(self) -> tuple[Worker, ...] | None:
        """All workers; None where this router has no such list, or does not show it."""
        try:
            return convert(get_json(self._url, self._call_s, key=self._key), _List).workers
        except (Unreachable, ValidationError):
            return None

    def remove(self, worker: Worker) -> None:
        """Give it no further requests; those under way go on. Raises Unreachable."""
        status, content = request(
            f"{self._url}/{quote(worker.id or worker.url, safe='')}",
            method="DELETE",
            key=self._key,
            deadline_s=self._call_s,
        )
        if status >= 400 and status != 404:
            raise Unreachable(f"{self._url}: HTTP {status}: {content[:200].decode('utf-8', 'replace')}")

    def add(self, role: str, backend: Backend) -> None:
        """Give it requests again. Raises Unreachable."""
        body: dict[str, Any] = {"url": backend.url, "worker_type": role}
        if backend.bootstrap_port is not None:
            body["bootstrap_port"] = backend.bootstrap_port
        if backend.key is not None:
            body["api_key"] = backend.key
        status, content = request(self._url, body=body, key=self._key, deadline_s=self._call_s)
        if status >= 400:
            raise Unreachable(f"{self._url}: HTTP {status}: {content[:200].decode('utf-8', 'replace')}")


def absent(listed: Sequence[Worker], wanted: Sequence[str]) -> list[str]:
    """Of these addresses those that get no requests."""
    serving = {one.url.rstrip("/") for one in listed if one.serves}
    return [url for url in wanted if url not in serving]
