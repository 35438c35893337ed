"""What the members of a fleet answer, put beside what its file says of them: for fleets that pdctl did not start.

Where one shows nothing of something, that is said; it is never taken for right.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pdctl.engines.deadline import Deadline
from pdctl.engines.http import excerpt
from pdctl.engines.live import ABSENT, Running
from pdctl.engines.said import ANSWER_S, Hidden, Mute, Said, Stranger, answer, say
from pdctl.engines.sglang.said import registry
from pdctl.fleet.urls import host_of
from pdctl.launch.state import ROUTER
from pdctl.running.identity import contradictions
from pdctl.up.workers import Worker, Workers

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet

READY, UNROUTED, WRONG, UNREADY, UNREACHABLE = "ready", "unrouted", "wrong", "unready", "unreachable"
_REGISTRIES: Final = ("sglang",)
"""Families whose bootstrap server answers over HTTP."""


class Heard(Struct, frozen=True):
    """What one member answered. `why`: what is wrong with it, where something is."""

    state: str
    why: str | None = None
    healthy: bool | None = None
    """Whether it says so itself; None where it says nothing that can be taken for an answer."""
    said: Said = Said()
    registry: bool | None = None
    routed: bool | None = None
    """Whether the router has it on its list, and healthy; None where that is not shown."""
    hidden: tuple[str, ...] = ()
    """What it does not show, and why."""
    workers: tuple[Worker, ...] | None = None
    """A router's list; None where it shows none."""

    def document(self) -> dict[str, Any]:
        """The `answers` of `status -o json`: null for what is not shown."""
        models = list(self.said.models) if self.said.models is not None else None
        return {
            "healthy": self.healthy,
            "model": models,
            "role": self.said.role,
            "version": self.said.version,
            "registry": self.registry,
            "routed": self.routed,
            "not_shown": list(self.hidden),
        }


def hear(member: Running, loaded: "LoadedFleet") -> Heard:
    """Ask one member all that there is to ask, within one deadline."""
    deadline, health = Deadline(ANSWER_S), f"{member.url}{member.ready_path}"
    try:
        if member.role == ROUTER:
            return _router(member, deadline)
        status = answer(member, member.ready_path, deadline, 0)[0]
    except Mute as failure:
        return Heard(UNREACHABLE, str(failure))
    except Stranger as failure:
        return Heard(WRONG, str(failure))
    except Hidden as failure:
        return Heard(WRONG, f"{health}: {failure}")
    if status != 200:
        return Heard(WRONG if status in ABSENT else UNREADY, f"{health}: HTTP {status}", False)
    try:
        said = say(member, deadline)
    except Mute as failure:
        return Heard(UNREADY, f"it says that it is healthy, and does not answer: {failure}", True)
    except Stranger as failure:
        return Heard(WRONG, str(failure), True)
    if wrong := next(contradictions(member, loaded, said), None):
        return Heard(WRONG, f"{member.url}: {wrong}", True, said)
    return _with_registry(member, said, deadline)


def _with_registry(member: Running, said: Said, deadline: Deadline) -> Heard:
    """A prefill engine that decode engines do not find serves nobody. One whose place is only guessed is no fault."""
    hidden = tuple(_hidden(member, said))
    if member.role != "prefill" or member.engine not in _REGISTRIES:
        return Heard(READY, None, True, said, hidden=hidden)
    place, guessed = member.places.get("bootstrap"), said.registry_port
    if place is None and guessed is None:
        return Heard(READY, None, True, said, hidden=(*hidden, "its bootstrap server"))
    host, port = place or (host_of(str(member.url)), guessed or 0)
    found, why = registry(host, port, deadline)
    if found:
        return Heard(READY, None, True, said, True, hidden=hidden)
    if found is False and place is not None:
        return Heard(UNREADY, f"its bootstrap server: {why}", True, said, False, hidden=hidden)
    missing = f"its bootstrap server: {why}" if place else f"its bootstrap server, by its own word at {host}: {why}"
    return Heard(READY, None, True, said, hidden=(*hidden, missing))


def _hidden(member: Running, said: Said) -> Iterator[str]:
    if said.hidden is not None:
        yield said.hidden
        return
    known = said.role or (said.takes_kv and member.role == "decode")
    for what, value in (("its model", said.models), ("its role", known), ("its version", said.version)):
        if value is None or value is False:
            yield what


def _router(member: Running, deadline: Deadline) -> Heard:
    """A router, once it says that it routes to both sides, and its list. Raises Hidden, Mute, Stranger."""
    url = f"{member.url}{member.ready_path}"
    status, body = answer(member, member.ready_path, deadline)
    if status in ABSENT:
        return Heard(WRONG, f"{url}: HTTP {status}: no {member.engine} router answers there")
    if status != 200:
        return Heard(UNREADY, f"{url}: HTTP {status}: {excerpt(body) or '(empty)'}", False)
    if is_markup(body):
        return Heard(WRONG, f"{url}: no router: {excerpt(body, 80)}")
    workers = Workers(str(member.url), member.key, deadline.left()).listed()
    hidden = () if workers is not None else (member.unkeyed or "its list of workers",)
    return Heard(READY, None, True, hidden=hidden, workers=workers)


def is_markup(body: bytes) -> bool:
    """Whether a page answers, as a proxy or a web server shows it, rather than a program."""
    return body.lstrip()[:1] == b"<"
