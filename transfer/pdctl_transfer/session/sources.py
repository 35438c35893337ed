"""Finding the prefill ranks of a request: registry, links, and what is asked of each."""

from collections.abc import Callable, Iterable

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.cost import Load, Way, choose, possible
from pdctl_transfer.session.bytes.work import pair_plan
from pdctl_transfer.session.drive.client import Address, Routes
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link, LinkOwner
from pdctl_transfer.session.receiving import Request, Source
from pdctl_transfer.session.wire.messages import Ask, Decline, Route


class Finder:
    """Keeps one connection a registry and one link a prefill rank. Loop thread only.

    owner: whom links report to. fail: ends a request. staging: whether there is an area for staged transfers.
    """

    def __init__(
        self, loop: Loop, me: Identity, owner: LinkOwner, fail: Callable[[Request, Failure], None], *, staging: bool
    ) -> None:
        self._loop, self._me, self._owner, self._fail, self._staging = loop, me, owner, fail, staging
        self._options = me.options
        self._routes: dict[Address, Routes] = {}
        self.links: dict[Address, Link] = {}
        self._declines: dict[Link, list[Decline]] = {}

    def find(self, request: Request) -> None:
        """Look up who serves the request, and ask them, now or once they are there."""
        self._routes_of(request.registry).find(request.room, lambda route: self._routed(request, route))

    def forget(self, link: Link) -> Address | None:
        """The link is over, so what the registry said may be, too. The address it had, if it was one of these."""
        for routes in self._routes.values():
            routes.forget()
        self._declines.pop(link, None)
        address = next((where for where, known in self.links.items() if known is link), None)
        if address is not None:
            del self.links[address]
        return address

    def close(self) -> None:
        """End all connections in order."""
        for routes in self._routes.values():
            routes.close()
        for link in list(self.links.values()):
            link.close()

    def decline(self, request: Request, source: Source, failure: Failure) -> None:
        """Tell a source that will not be asked any more, now or when its link is ready."""
        message = Decline(request.room, failure.code, failure.cause, failure.side)
        if source.link.is_ready:
            source.link.send(message)
        else:
            self._declines.setdefault(source.link, []).append(message)

    def ready(self, link: Link, requests: Iterable[Request]) -> None:
        """A link is ready: say what waited for it."""
        for message in self._declines.pop(link, []):
            link.send(message)
        for request in requests:
            self.ask(request, link)

    def why_not_met(self, request: Request) -> Failure:
        """What a request that never met its prefill ranks was waiting for."""
        within = f"room {request.room}: after {self._options.bootstrap_s:g} s"
        routes = self._routes_of(request.registry)
        if not request.sources:
            if routes.cause:
                return Failure(routes.code, f"{within}, {routes.cause}", "prefill")
            return Failure("PD4002", f"{within}, {request.missing or 'no answer'}", "prefill")
        unready = [str(tuple(rank)) for rank, source in request.sources.items() if not source.ready]
        return Failure("PD4032", f"{within}, not opened by prefill {', '.join(unready)}", "prefill")

    def _routes_of(self, registry: Address) -> Routes:
        if registry not in self._routes:
            self._routes[registry] = Routes(self._loop, registry, self._options)
        return self._routes[registry]

    def _routed(self, request: Request, route: Route) -> bool:
        """True once the request needs no further answer."""
        failure = request.handle.failure
        if request.handle.state != "bootstrapping" and failure is None:
            return True
        request.missing = route.missing
        if route.missing:
            return False
        mine = RankId(self._me.rank.pp, self._me.rank.tp)
        try:
            plan = pair_plan(route.manifest, self._me.encoded)
        except TransferError:  # the handshake judges the pair, and both sides hear of it
            request.sources = {
                RankId(served.rank.pp, served.rank.tp): Source(self._link((served.host, served.port)))
                for served in route.ranks
            }
            return True
        if plan.prefill.parallel.dp == 1:
            self._routes_of(request.registry).keep(route)
        wanted = plan.prefill_ranks(mine)
        for served in route.ranks:
            rank = RankId(served.rank.pp, served.rank.tp)
            if rank in wanted:
                link = self._link((served.host, served.port))
                request.sources[rank] = Source(link, plan.part(rank, mine))
        if failure is not None:  # given up before it was known whom to ask
            for source in request.sources.values():
                self.decline(request, source, failure)
            return True
        for link in {id(source.link): source.link for source in request.sources.values()}.values():
            self.ask(request, link)
        return True

    def _link(self, address: Address) -> Link:
        link = self.links.get(address)
        if link is None or link.channel.over:
            channel = self._loop.connect(*address, self._options.secret, self._options.handshake_s)
            link = self.links[address] = Link(self._me, channel, self._owner, connector=True)
        return link

    def ask(self, request: Request, link: Link) -> None:
        """Ask the sources on this link, once it is ready."""
        if not link.is_ready:
            return
        if link.is_silent:
            self._fail(request, Failure("PD4005", f"{link.name} says nothing", "prefill"))
            return
        indices = {kind: ids.astype("<i8").tobytes() for kind, ids in request.indices.items()}
        for source in request.sources.values():
            if source.link is link and not source.asked:
                source.asked, source.settled = True, False
                source.ways = self._ways(source, request)
                link.send(Ask(*request.key, indices, source.ways, self._options.verify))

    def _ways(self, source: Source, request: Request) -> dict[str, Way]:
        """How each kind travels from this source."""
        if source.part is None or source.link.hello is None:
            return {}
        able = possible(
            sender_copies=source.link.hello.copies,
            receiver_copies=self._me.copier.can_copy,
            staging=self._staging,
        )
        transport = self._me.fabric.observed_transport()
        ways: dict[str, Way] = {}
        for kind, strips in source.part.strips.items():
            ids = request.indices.get(kind)
            if ids is not None and len(ids):
                load = Load(strips, ids)
                ways[kind] = choose(load, transport, source.link.chunk_bytes, able)
        return ways
