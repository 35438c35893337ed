"""Three read-only routes on vLLM's own HTTP port, and the method of its workers that answers them.

`GET /pdctl/layout`: what the engine registered, all stages. `GET /pdctl/events?after=N`: the last transfers of each
rank, as the reference engine shows them. `GET /pdctl/ways`: who carries the bytes to and from each peer, and why.

The shape is that of vLLM's endpoint plugins. vLLM loads those only when VLLM_PLUGINS names them, and with that variable
set it loads no plugin that is not named: to name this one would turn off the operator's others. So it is added here;
PDCTL_PLUGIN=off removes it with everything else.
"""

import json
from collections.abc import Callable
from typing import Any, Final

from pdctl_transfer.layout.read import decode_manifest, encode_manifest
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.peer import ROUTE
from pdctl_transfer.plugins.sglang_layout import merge
from pdctl_transfer.plugins.stages import JSON

EVENTS: Final = "/pdctl/events"
WAYS: Final = "/pdctl/ways"
METHOD: Final = "pdctl_report"
_TIMEOUT: Final = 5.0


@guarded(None)
def install(report: Callable[..., str]) -> None:
    """Give workers `report(worker, after)`, JSON with `layout`, `events` and `ways`, and the server its routes."""
    import vllm.plugins
    from vllm.v1.worker.worker_base import WorkerBase

    if hasattr(WorkerBase, METHOD):
        return
    setattr(WorkerBase, METHOD, report)
    known = vllm.plugins.load_endpoint_plugins

    def load_endpoint_plugins(*args: Any, **kwargs: Any) -> list[Any]:
        return [*known(*args, **kwargs), Endpoint()]

    vllm.plugins.load_endpoint_plugins = load_endpoint_plugins


class Endpoint:
    """What vLLM's API server calls of an endpoint plugin."""

    name: Final = "pdctl"
    required_tasks: Final = None

    def __init__(self) -> None:
        self._engine: Any = None
        self._layout: bytes | None = None

    @guarded(None)
    def attach_router(self, app: Any) -> None:
        """Add the routes to a Starlette application."""
        app.add_route(ROUTE, self.layout, methods=["GET"])
        app.add_route(EVENTS, self.events, methods=["GET"])
        app.add_route(WAYS, self.ways, methods=["GET"])

    async def init_state(self, engine_client: Any, *_: Any) -> None:
        """Keep the engine; None on a server that only renders."""
        self._engine = engine_client

    async def layout(self, _: Any) -> Any:
        """The manifest; asked once, since it does not change and a long step would keep pdctl waiting."""
        from starlette.responses import Response

        if self._layout is None:
            ranks = await self._ask(0)
            parts = [json.dumps(rank["layout"]).encode() for rank in ranks if rank.get("layout")]
            stages = {part.stages[0].pp_rank: part for part in (decode_manifest(text, ROUTE) for text in parts)}
            if not stages:
                return Response("this engine is no side of a pair", status_code=404)
            self._layout = encode_manifest(merge(stages.values()))
        return Response(self._layout, media_type=JSON)

    async def events(self, request: Any) -> Any:
        """Events of all ranks, each with its rank; `?after=` gives those above a serial number."""
        from starlette.responses import JSONResponse, Response

        after = request.query_params.get("after", "0")
        if not after.isdecimal():
            return Response("after: a serial number", status_code=400)
        ranks = await self._ask(int(after))
        return JSONResponse([{"rank": rank, **event} for rank, one in enumerate(ranks) for event in one["events"]])

    async def ways(self, _: Any) -> Any:
        """One object a peer, as the first rank that knows of it says."""
        from starlette.responses import JSONResponse

        found: dict[str, Any] = {}
        for rank in await self._ask(0):
            for way in rank.get("ways", []):
                found.setdefault(way["peer"], way)
        return JSONResponse(list(found.values()))

    async def _ask(self, after: int) -> list[dict[str, Any]]:
        if self._engine is None:
            return []
        return [json.loads(answer) for answer in await self._engine.collective_rpc(METHOD, _TIMEOUT, (after,))]
