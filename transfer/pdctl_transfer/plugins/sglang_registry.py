"""Where decode engines find the core of a prefill engine: beside the bootstrap server, in its process, at its port.

`GET /pdctl/registry` says where the core's registry listens and whether all ranks of the engine are there; a rank that
has no core PUTs why. The answer `pending` turns once into `ready` or `off` and stays: all ranks of a decode engine must
choose one way, and each asks for itself.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Parallel
from pdctl_transfer.plugins.ask import ask
from pdctl_transfer.plugins.peer import Refusal, Unanswered, code_of
from pdctl_transfer.plugins.sglang_ways import Offer
from pdctl_transfer.session import Options, Rank, Registry

log = logging.getLogger("pdctl")

ROUTE: Final = "/pdctl/registry"
PATIENCE_S: Final = 20.0
"""How long after the first question ranks may still come. They come within a second of the engine's start."""
_LIMIT_BYTES: Final = 16 << 10


class Desk:
    """What a bootstrap server answers. Any thread may ask.

    ranks: who is registered now; parallel: the engine's sizes, None while no layout is there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        ranks: Callable[[], set[Rank]],
        parallel: Callable[[], Parallel | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pending = Offer("pending", host, port)
        self._final: Offer | None = None
        self._ranks, self._parallel, self._clock = ranks, parallel, clock
        self._asked: float | None = None
        self._lock = threading.Lock()

    def offer(self) -> Offer:
        """The answer now."""
        with self._lock:
            if self._final is not None:
                return self._final
            now = self._clock()
            self._asked = now if self._asked is None else self._asked
            here, sizes = self._ranks(), self._parallel()
            expected = _expected(sizes) if sizes is not None else None
            if expected is not None and expected <= here:
                self._final = msgspec.structs.replace(self._pending, state="ready")
            elif now - self._asked > PATIENCE_S:
                count = f"{len(here)} of {len(expected)}" if expected is not None else f"{len(here)}"
                self._final = Offer("off", code="PD3141", reason=f"{count} ranks are at its registry")
            return self._final or self._pending

    def off(self, why: Refusal) -> None:
        """A rank has no core: then none is used, whatever the others have. The first word counts."""
        with self._lock:
            if self._final is None:
                self._final = Offer("off", code=why.code, reason=why.text)

    def put(self, body: bytes) -> int:
        """The same by HTTP; its status."""
        try:
            why = msgspec.json.decode(body[:_LIMIT_BYTES], type=Refusal)
        except msgspec.MsgspecError:
            return 400
        if code_of(why.code) != why.code:
            return 400
        self.off(Refusal(why.code, "".join(c for c in why.text[:300] if c.isprintable())))
        return 200


def _expected(sizes: Parallel) -> set[Rank]:
    return {Rank(pp, tp, dp) for pp in range(sizes.pp) for tp in range(sizes.attn_tp) for dp in range(sizes.dp)}


def serve(options: Options, parallel: Callable[[], Parallel | None]) -> Desk:
    """A registry at a free port of this process, and the desk that tells of it. FabricError PD4015."""
    registry = Registry(options.host, 0, options.secret)
    host = options.advertise or options.host
    log.info("pdctl plugin: the core's registry listens at %s:%d", host, registry.port)
    return Desk(host, registry.port, lambda: {served.rank for served in registry.ranks()}, parallel)


def routes(app: Any, desk: Desk) -> None:
    """Add the desk to an aiohttp application."""
    from aiohttp import web

    async def get(_: Any) -> Any:
        return web.Response(body=msgspec.json.encode(desk.offer()), content_type="application/json")

    async def put(request: Any) -> Any:
        return web.Response(status=desk.put(await request.read()))

    app.router.add_get(ROUTE, get)
    app.router.add_put(ROUTE, put)


def fetch(address: str) -> Offer | None:
    """What the prefill engine behind this bootstrap port says; None where it knows no core. Raises Unanswered."""
    try:
        status, body = ask("GET", f"http://{address}{ROUTE}", limit_bytes=_LIMIT_BYTES)
    except OSError as failure:
        raise Unanswered(str(failure)) from failure
    if status in (404, 405):
        return None
    if status != 200:
        raise Unanswered(f"HTTP {status}")
    try:
        return msgspec.json.decode(body, type=Offer)
    except msgspec.MsgspecError as fault:
        raise Unanswered(f"no offer: {fault}") from fault


def where(address: str) -> tuple[str, int]:
    """The registry that a rank of this very engine goes to. TransferError PD3134 where there is none."""
    try:
        offer = fetch(address)
    except Unanswered as failure:
        raise TransferError(f"the bootstrap server at {address} does not answer: {failure}", code="PD3134") from failure
    if offer is None or not offer.port:
        why = offer.reason if offer is not None else "it has no route for it"
        raise TransferError(f"no registry at the bootstrap server at {address}: {why}", code="PD3134")
    return offer.host, offer.port


def report(address: str, why: Refusal) -> None:
    """Tell the bootstrap server that this rank has no core; decode engines then stay off it."""
    try:
        ask("PUT", f"http://{address}{ROUTE}", msgspec.json.encode(why))
    except OSError as failure:
        log.warning("pdctl plugin: the bootstrap server at %s did not hear that there is no core: %s", address, failure)
