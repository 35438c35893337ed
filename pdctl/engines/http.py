"""JSON over HTTP to engines and routers, with the standard library.

Not httpx: `pdctl status` must answer at once, and these are private addresses on which a proxy from the environment
(`http_proxy`, common on clusters) must never be used.
"""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class Unreachable(Exception):
    """No usable answer: refused, timed out, cut off, or not HTTP."""


class Rejected(Unreachable):
    """The request itself was not accepted: a status of the 400s."""


def request(
    url: str, *, body: Any = None, timeout_s: float = 10.0, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Status and body of one GET, or POST where there is a body. Raises Unreachable."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout_s)
    path = parts.path + (f"?{parts.query}" if parts.query else "") or "/"
    try:
        if body is None:
            connection.request("GET", path, headers=headers or {})
        else:
            content = json.dumps(body).encode()
            connection.request("POST", path, content, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{url}: {_reason(error)}") from error
    finally:
        connection.close()


def get_json(url: str, timeout_s: float = 10.0) -> Any:
    """The JSON document at `url`. Raises Unreachable, also for another status than 200 or a body that is not JSON."""
    return _decoded(url, *request(url, timeout_s=timeout_s))


def post_json(url: str, body: Any, timeout_s: float = 30.0) -> Any:
    """The JSON answer to a JSON body. Raises Unreachable, also for another status than 200."""
    return _decoded(url, *request(url, body=body, timeout_s=timeout_s))


def answers(url: str, timeout_s: float = 1.0) -> bool:
    """Whether a GET comes back with 200."""
    try:
        return request(url, timeout_s=timeout_s)[0] == 200
    except Unreachable:
        return False


def _decoded(url: str, status: int, content: bytes) -> Any:
    if status != 200:
        text = content.decode("utf-8", "replace").strip()
        kind = Rejected if 400 <= status < 500 else Unreachable
        raise kind(f"{url}: HTTP {status}: {text[:300] or '(empty)'}")
    try:
        return json.loads(content)
    except ValueError:
        raise Unreachable(f"{url}: not JSON: {content[:80]!r}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
