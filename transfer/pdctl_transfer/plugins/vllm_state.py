"""What the plugin knows in one of vLLM's processes, and the end of requests as events."""

from typing import Any, Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.peer import code_of
from pdctl_transfer.telemetry import Telemetry

EVENTS: Final = 256


class State:
    """One object a process; hooks run in the worker's threads and its asynchronous loops."""

    def __init__(self) -> None:
        self.telemetry = Telemetry("unknown", "0", EVENTS)
        self.manifest: Manifest | None = None
        self.failing: dict[str, str] = {}
        """Why requests are about to fail, until vLLM says that they did."""

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
