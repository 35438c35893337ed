"""Whether a router gives requests to the engines of a fleet that pdctl did not start, by the list that it shows."""

from collections.abc import Mapping, Sequence

from msgspec import structs

from pdctl.engines.live import Running
from pdctl.fleet.urls import parse_url
from pdctl.up.heard import READY, UNREACHABLE, UNROUTED, Heard
from pdctl.up.workers import Worker


def with_routes(members: Sequence[Running], heard: Mapping[str, Heard], workers: Sequence[Worker]) -> dict[str, Heard]:
    """What was heard, by name, with what the router's list says of each prefill and decode engine.

    A router may know an engine by another name of its host: while it has addresses of that role that are nobody's, an
    engine that is missing may be one of them.
    """
    listed = {_same(worker.url): worker for worker in workers}
    found = dict(heard)
    for one in members:
        if one.role in ("prefill", "decode"):
            aliases = [url for url in others(members, workers) if listed[url].worker_type in (None, one.role)]
            found[one.name] = _routed(one, found[one.name], listed.get(str(one.url)), aliases)
    return found


def others(members: Sequence[Running], workers: Sequence[Worker]) -> tuple[str, ...]:
    """Addresses on the list that are no member's."""
    known = {one.url for one in members}
    return tuple(url for worker in workers if (url := _same(worker.url)) not in known)


def _routed(one: Running, heard: Heard, worker: Worker | None, aliases: Sequence[str]) -> Heard:
    if worker is None and aliases and heard.state != UNREACHABLE:
        what = f"whether it is routed: the router has no {one.url}, and may know it as {', '.join(aliases[:3])}"
        return structs.replace(heard, hidden=(*heard.hidden, what))
    fault = _fault(one, heard, worker)
    if fault is not None and heard.state == READY:  # what answers and is given no requests is not ready
        heard = structs.replace(heard, state=UNROUTED, why=fault)
    return structs.replace(heard, routed=fault is None)


def _fault(one: Running, heard: Heard, worker: Worker | None) -> str | None:
    """Why it gets no requests that could be answered."""
    if worker is None:
        return f"the router has no worker {one.url}"
    if worker.worker_type not in (None, one.role):
        return f"the router takes it for {worker.worker_type}"
    if not worker.serves:
        return f"the router gives it no requests: {worker.status or 'unhealthy'}"
    port = one.places["bootstrap"][1] if "bootstrap" in one.places else heard.said.registry_port
    if one.role == "prefill" and None not in (port, worker.bootstrap_port) and port != worker.bootstrap_port:
        return f"the router sends decode engines to its bootstrap port {worker.bootstrap_port}, which is {port}"
    return None


def _same(url: str) -> str:
    """A worker's address in our form."""
    try:
        return str(parse_url(url))
    except ValueError:
        return url
