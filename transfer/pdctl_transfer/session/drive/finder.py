"""Finding the prefill ranks that serve a room, by their registries."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.work import pair_plan
from pdctl_transfer.session.drive.client import Address, Routes
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key
from pdctl_transfer.session.wire import messages as say


class Finder:
    """Asks one registry a prefill engine, and tells the machine whom it named. On the loop thread."""

    def __init__(self, me: Identity, loop: Loop, tell: Callable[[on.AnyEvent], None]) -> None:
        self._me, self._loop, self._tell = me, loop, tell
        self._routes: dict[Address, Routes] = {}
        self._answers: dict[Key, tuple[Routes, Any]] = {}

    def find(self, find: do.Find) -> None:
        """Tell of the ranks that serve a room, until it is known or `unfind` is called."""
        self.unfind(find.key)
        routes = self._routes.get(find.registry)
        if routes is None:
            routes = self._routes[find.registry] = Routes(self._loop, find.registry, self._me.options)
        answer = partial(self._routed, find.key, routes)
        self._answers[find.key] = routes, answer
        routes.find(find.room, answer)

    def unfind(self, key: Key) -> None:
        """Nobody waits for it any more."""
        routes, answer = self._answers.pop(key, (None, None))
        if routes is not None:
            routes.withdraw(key[0], answer)

    def forget(self) -> None:
        """What the registries said may have changed."""
        for routes in self._routes.values():
            routes.forget()

    def close(self) -> None:
        """Ask no more."""
        for routes in self._routes.values():
            routes.close()

    def unanswered(self, registry: Address) -> Failure | None:
        """Why a registry does not answer."""
        routes = self._routes.get(registry)
        if routes is None or not routes.cause:
            return None
        return Failure(routes.code, routes.cause, "prefill")

    def _routed(self, key: Key, routes: Routes, route: say.Route) -> bool:
        """True once no further answer is needed."""
        if route.missing:
            self._tell(on.Routed(time.monotonic(), key, (), route.missing))
            return False
        self._answers.pop(key, None)
        rank = self._me.rank
        try:
            plan = pair_plan(route.manifest, self._me.encoded)
        except TransferError:  # the handshake judges the pair, and all ranks hear of it
            served, several = route.ranks, False
        else:
            several = plan.prefill.parallel.dp > 1
            wanted = plan.prefill_ranks(RankId(rank.pp, rank.tp))
            served = tuple(one for one in route.ranks if RankId(one.rank.pp, one.rank.tp) in wanted)
            if not several:
                routes.keep(route)
        targets = tuple(
            on.Target(RankId(one.rank.pp, one.rank.tp), one.incarnation, (one.host, one.port)) for one in served
        )
        self._tell(on.Routed(time.monotonic(), key, targets, changes=several))
        return True
