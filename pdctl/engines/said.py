"""What a running engine says of itself over HTTP, without a plugin: model, role, version, sizes.

What an engine does not show is None. How a family is asked is `say(running, deadline)` in
`pdctl/engines/<name>/said.py`.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from msgspec import Struct

from pdctl.engines.deadline import Deadline
from pdctl.engines.http import LIMIT_BYTES, Unreachable, decoded, excerpt, request
from pdctl.engines.live import ABSENT, Running

ANSWER_S: Final = 5.0
"""For all questions to one engine."""
KEYED: Final = (401, 403)
"""What a server says to who has not its key."""


class Said(Struct, frozen=True):
    """An engine's words. `sizes`: by the fleet file's names, page_size among them."""

    engine: str | None = None
    models: tuple[str, ...] | None = None
    role: str | None = None
    """prefill, decode, or aggregate: no side of a pair."""
    version: str | None = None
    sizes: Mapping[str, int | str] = {}
    registry_port: int | None = None
    """Where its bootstrap server listens, if it has one."""
    takes_kv: bool | None = None
    """Whether it takes KV from another engine, where that alone is known of its role."""
    hidden: str | None = None
    """Why it shows nothing, where it does not."""


class Mute(Exception):
    """It does not answer a question that every engine of its family answers."""


class Stranger(Exception):
    """What answers there is no engine of this family."""


#: Where each engine's questions are.
ASKED: Final[Mapping[str, str]] = {
    "reference": "pdctl.engines.sglang.said",
    "sglang": "pdctl.engines.sglang.said",
    "vllm": "pdctl.engines.vllm.said",
    "vllm-ascend": "pdctl.engines.vllm.said",
}


def say(running: Running, deadline: Deadline) -> Said:
    """What it says. Raises Mute, Stranger."""
    module = ASKED.get(running.engine)
    if module is None:
        return Said(hidden=f"no way to ask a {running.engine or 'unknown'} engine")
    ask: Callable[[Running, Deadline], Said] = import_module(module).say
    return ask(running, deadline)


class Hidden(Exception):
    """It asks for another key, or for any."""


def ask(running: Running, path: str, deadline: Deadline, limit_bytes: int = LIMIT_BYTES) -> Any:
    """The document at a path; None where there is nothing like it. Raises Hidden, Mute, Stranger."""
    url = f"{running.url}{path}"
    status, body = answer(running, path, deadline, limit_bytes)
    if status in ABSENT:
        return None
    if status != 200:
        raise Mute(f"{url}: HTTP {status}: {excerpt(body) or '(empty)'}")
    try:
        return decoded(url, status, body)
    except Unreachable as failure:
        raise Stranger(str(failure)) from failure


def answer(running: Running, path: str, deadline: Deadline, limit_bytes: int = LIMIT_BYTES) -> tuple[int, bytes]:
    """Status and body. Raises Hidden for a key that is not taken, Mute, Stranger for a redirect: none is followed."""
    url = f"{running.url}{path}"
    try:
        status, body = request(url, key=running.key, deadline_s=deadline.left(), limit_bytes=limit_bytes)
    except Unreachable as failure:
        raise Mute(str(failure)) from failure
    if status in KEYED:
        raise Hidden(running.unkeyed or f"it takes no key, or another one: HTTP {status}")
    if 300 <= status < 400:
        raise Stranger(f"{url}: HTTP {status}, a redirect, which is not followed")
    return status, body
