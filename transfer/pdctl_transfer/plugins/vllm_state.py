"""What the plugin knows in one of vLLM's processes, and the end of requests as events."""

import logging
from typing import Any, Final, Literal

from msgspec import Struct

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.peer import code_of
from pdctl_transfer.telemetry import Telemetry

log = logging.getLogger("vllm.pdctl")

EVENTS: Final = 256


PEERS: Final = 256


class Way(Struct, frozen=True):
    """How the last request to or from a peer went: by the core or the engine's own connector, and why."""

    peer: str
    way: Literal["core", "engine"]
    code: str = ""
    reason: str = ""


class State:
    """One object a process; hooks run in the worker's threads and its asynchronous loops."""

    def __init__(self) -> None:
        self.telemetry = Telemetry("unknown", "0", EVENTS)
        self.manifest: Manifest | None = None
        self.failing: dict[str, str] = {}
        """Why requests are about to fail, until vLLM says that they did."""
        self.ways: dict[str, Way] = {}
        """By peer; of too many the oldest is not kept."""

    def went(self, way: Way) -> None:
        """A request goes this way."""
        known = self.ways.pop(way.peer, None)
        if known != way:
            why = f" {way.code}: {way.reason}" if way.code else ""
            log.info("pdctl: %s: by the %s's way%s", way.peer, way.way, why)
        self.ways[way.peer] = way
        if len(self.ways) > PEERS:
            del self.ways[next(iter(self.ways))]

    @guarded(None)
    def settle(self, _: Any, results: Any) -> None:
        """Decode's requests that ended in this step: one event each."""
        for request in results.finished_recving | results.failed_recving:
            reason = self.failing.pop(request, None)
            if reason is None and request not in results.failed_recving:
                self.telemetry.ended(-1, "", "", "", {}, request)
                continue
            reason = reason or "the transfer failed"
            self.telemetry.ended(-1, code_of(reason), "decode", reason[:300], {}, request)


state = State()
