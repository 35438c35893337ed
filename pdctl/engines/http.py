"""JSON over HTTP to engines and routers. Whatever the other side does costs one answer, never the command.

A call has one deadline, from looking up the name to the last byte, and a limit on the bytes that it takes. Addresses
are private: no proxy from the environment is used, and no redirect is followed.
"""

import json
import logging
from typing import Any, Final

from pdctl.engines.deadline import Deadline
from pdctl.redact import clean_line, hide

_LOG: Final = logging.getLogger(__name__)
LIMIT_BYTES: Final = 2 << 20
"""Of an answer, unless said: as objects in memory it may become thirty times as much."""
_SHOWN: Final = 300


class Unreachable(Exception):
    """No usable answer: refused, timed out, cut off, too long, or not what was asked for. One line of clean text."""


class Rejected(Unreachable):
    """The request itself was not accepted: a status of the 400s."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def request(
    url: str,
    *,
    method: str | None = None,
    body: Any = None,
    key: str | None = None,
    deadline_s: float = 10.0,
    limit_bytes: int = LIMIT_BYTES,
) -> tuple[int, bytes]:
    """Status and body of one request: GET, or POST where there is a body, unless `method` says otherwise.

    key: sent as a bearer token. limit_bytes: of the answer's body; 0 asks for the status alone. Raises Unreachable.
    """
    from pdctl.engines.wire import Oversized, exchange

    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Connection": "close"}
    content = None
    if key:
        headers["Authorization"] = f"Bearer {key}"
    if body is not None:
        headers["Content-Type"] = "application/json"
        content = json.dumps(body).encode()
    verb = method or ("GET" if body is None else "POST")
    try:
        status, answer = exchange(verb, url, headers, content, Deadline(deadline_s), limit_bytes)
    except Oversized:
        raise Unreachable(f"{url}: an answer of more than {_bytes(limit_bytes)}") from None
    except (OSError, ValueError) as error:
        reason = _reason(error, deadline_s)
        _LOG.debug("%s %s: %s", verb, hide(url), reason)
        raise Unreachable(f"{url}: {reason}") from error
    _LOG.debug("%s %s: HTTP %d", verb, hide(url), status)
    return status, answer


def get_json(url: str, deadline_s: float = 10.0, *, key: str | None = None, limit_bytes: int = LIMIT_BYTES) -> Any:
    """The JSON document at `url`. Raises Unreachable, also for another status than 200 or a body that is not JSON."""
    return decoded(url, *request(url, key=key, deadline_s=deadline_s, limit_bytes=limit_bytes))


def post_json(url: str, body: Any, deadline_s: float = 30.0, *, key: str | None = None) -> Any:
    """The JSON answer to a JSON body. Raises Unreachable, also for another status than 200."""
    return decoded(url, *request(url, body=body, key=key, deadline_s=deadline_s))


def answers(url: str, deadline_s: float = 2.5, *, key: str | None = None) -> bool:
    """Whether a GET comes back with 200; its body is not read. SGLang's /health sends itself a request and looks
    for its answer a second later, so a second is too short."""
    try:
        return request(url, key=key, deadline_s=deadline_s, limit_bytes=0)[0] == 200
    except Unreachable:
        return False


def decoded(url: str, status: int, content: bytes) -> Any:
    """The document of an answer with status 200. Raises Unreachable, Rejected for a status of the 400s."""
    if status != 200:
        message = f"{url}: HTTP {status}: {excerpt(content) or '(empty)'}"
        raise Rejected(message, status) if 400 <= status < 500 else Unreachable(message)
    try:
        return json.loads(content)
    except RecursionError:
        raise Unreachable(f"{url}: not JSON of a usable depth") from None
    except ValueError:
        raise Unreachable(f"{url}: not JSON: {excerpt(content, 80) or '(empty)'}") from None


def excerpt(content: bytes, length: int = _SHOWN) -> str:
    """The beginning of a body for an error: one line, nothing that a terminal would obey."""
    text = " ".join(content[: 8 * length].decode("utf-8", "replace").split())
    return clean_line(text[:length])


def _reason(error: Exception, deadline_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in time ({deadline_s:.3g} s)"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return excerpt(str(text).lower().encode("utf-8", "replace"), 200)


def _bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"
