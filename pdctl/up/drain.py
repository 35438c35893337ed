"""Taking engines out of traffic before they are ended, and putting them back: by the router's list of workers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pdctl.engines.http import Unreachable, request
from pdctl.errors import GateError
from pdctl.launch.state import ROUTER
from pdctl.routers import Backend
from pdctl.up.context import Bringup
from pdctl.up.parallel import each
from pdctl.up.workers import Worker, Workers, absent

DRAIN_S: Final = 30.0
"""How long requests under way are waited for, unless said."""
LISTED_S: Final = 150.0
"""How long a router may take to take a worker on its list: it asks the engine first."""
POLL_S: Final = 0.1
_UNDER_WAY: Final = (
    "pdctl_ref_requests_running",
    "pdctl_ref_requests_waiting",
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
)
"""Gauges of the engines, in Prometheus' text form."""


@dataclass(frozen=True)
class Enlisted:
    """An engine as a router's list has it."""

    role: str
    backend: Backend


def drain(run: Bringup, leaving: Mapping[str, str]) -> None:
    """Take these engines (name → address) off the router's list, and wait until they have nothing to do any more.

    Nothing here fails: a router without a list, or that does not answer, is said, and so are requests that are cut.
    """
    if run.serving_at is None or not leaving:
        return
    router = Workers(run.serving_at, run.plan.control_key)
    listed = router.listed() if _would_be_back(run, leaving) else None
    if listed is None:
        run.events.progress("the router cannot be told: requests to what is restarted fail meanwhile")
        return
    here = {url: name for name, url in leaving.items()}
    mine = [worker for worker in listed if worker.url.rstrip("/") in here]
    for worker in mine:
        run.drained.add(here[worker.url.rstrip("/")])
        try:
            router.remove(worker)
        except Unreachable as error:
            run.events.progress(f"the router does not let {here[worker.url.rstrip('/')]} go: {error}")
    _wait_idle(run, router, {here[worker.url.rstrip("/")]: worker for worker in mine})


def _would_be_back(run: Bringup, leaving: Mapping[str, str]) -> bool:
    """Whether what is taken off the list can come on it again: by this router, by the one that is started later, or
    not at all because it is gone for good."""
    gone = not any(unit.name in leaving for unit in run.plan.units)
    return run.plan.router_kind.takes_on or gone or ROUTER in run.leaving


def make_way(run: Bringup, role: str) -> None:
    """End the units of a role that are to go or to be started anew, once they are out of traffic.

    Also one that is to be started in this role, whatever it was: two of a name never run.
    """
    wanted = {unit.name for unit in run.plan.units if unit.role == role}
    going = {
        name: entry
        for name, entry in run.leaving.items()
        if name not in run.ended and (entry.role == role or name in wanted)
    }
    drain(run, {name: entry.url for name, entry in going.items() if entry.role != ROUTER})
    run.ended.update(going)
    run.launcher.stop(list(going))


def _wait_idle(run: Bringup, router: Workers, leaving: Mapping[str, Worker]) -> None:
    ends = time.monotonic() + run.drain_s
    counted: set[str] = set()
    while True:
        still = {worker.url: worker for worker in router.listed() or ()}
        counted |= still.keys()
        asked = [(one, still.get(one.url), one.url in counted) for one in leaving.values()]
        counts = zip(leaving, each(lambda one: _busy(*one), asked), strict=True)
        busy = [f"{name} ({count})" if count else name for name, count in counts if count != 0]
        if not busy:
            return
        if time.monotonic() > ends:
            run.events.progress(f"requests under way are cut after {run.drain_s:.0f} s: {', '.join(busy)}")
            return
        run.events.progress(f"draining {', '.join(busy)}")
        time.sleep(POLL_S)


def _busy(before: Worker, still: Worker | None, counted: bool) -> int | None:
    """Requests that the engine is still at; None where nobody says.

    smg keeps a worker on its list while it counts requests to it (`counted`); sglang-router drops it at once, and then
    only the engine knows.
    """
    known = [still.load or 0] if still else [0] if counted or before.load == 0 else []
    own = under_way(before.url)
    return max([*known, *([own] if own is not None else [])], default=None)


def under_way(url: str) -> int | None:
    """Requests that an engine has, by its own metrics; None where it shows none."""
    try:
        status, content = request(f"{url}/metrics", deadline_s=2.0)
    except Unreachable:
        return None
    found = [gauge for line in content.decode("utf-8", "replace").splitlines() if (gauge := _gauge(line)) is not None]
    return int(sum(found)) if status == 200 and found else None


def _gauge(line: str) -> float | None:
    name, _, value = line.rpartition(" ")
    try:
        return float(value) if name.partition("{")[0] in _UNDER_WAY else None
    except ValueError:
        return None


def enlist(run: Bringup, url: str, engines: Mapping[str, Enlisted], patience_s: float = LISTED_S) -> None:
    """See to it that the router at `url` gives requests to these engines, by name; one without a list is left alone.

    Raises GateError (PD3022) where it does not in time.
    """
    router = Workers(url, run.plan.control_key)
    wanted = {name: one for name, one in engines.items() if one.role in ("prefill", "decode")}
    names = {one.backend.url: name for name, one in wanted.items()}
    asked: set[str] = set()
    ends = time.monotonic() + patience_s
    while (listed := router.listed()) is not None and (missing := absent(listed, list(names))):
        for url in missing:
            if url not in asked and all(worker.url.rstrip("/") != url for worker in listed):
                asked.add(url)
                _add(run, router, wanted[names[url]])
        said = ", ".join(names[url] for url in missing)
        if time.monotonic() > ends:
            raise _not_taken(run, f"after {patience_s:.0f} s it gives no requests to {said}")
        run.events.progress(f"the router takes on {said}")
        time.sleep(POLL_S)


def _add(run: Bringup, router: Workers, one: Enlisted) -> None:
    try:
        router.add(one.role, one.backend)
    except Unreachable as error:
        raise _not_taken(run, str(error)) from error


def _not_taken(run: Bringup, reason: str) -> GateError:
    hint = f"its log: {run.launcher.log('router')}; `pdctl restart {run.loaded.fleet.name} router` starts it anew"
    return GateError(f"the router does not take its workers on: {reason}", code="PD3022", hint=hint)
