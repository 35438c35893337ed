"""The registry's table as a machine: events in, actions out, no clock and no socket.

A rank is *claimed* by each process that registers it, over a connection of its own. The claims of one rank stand in
the order in which they came, and decode is told of the first whose connection stands. So nobody who lives is displaced
by whoever comes later: that one is kept aside, is told so (PD4026), and takes the place once those before it have
left. A claim whose connection broke keeps its turn for AWAY_S: the next in line stands in at once, which is how a
restarted rank replaces its former self, and a process that comes back is found again. Who said good-bye, or nothing
for TTL_S, has lost its turn; if it lives after all, it is told to register again.

Rooms belong to connections as well: each rank says which are open, and says it again when it comes back.
"""

from typing import Final

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.session.machine.rooms import Rooms
from pdctl_transfer.session.machine.table_events import (
    Action,
    Beaten,
    CloseLink,
    Event,
    Gone,
    Left,
    LookedUp,
    Owner,
    Registered,
    RoomClosed,
    RoomOpened,
    SendMessage,
    TimePassed,
)
from pdctl_transfer.session.options import Rank
from pdctl_transfer.session.wire.messages import Again, Beat, Register, Route, Served, Standing

TTL_S: Final = 15.0
AWAY_S: Final = 15.0
TICK_S: Final = 3.0
"""How often `TimePassed` comes. Where it comes later, the registry itself was held up, and blames nobody for that."""
MAX_CLAIMS: Final = 8
"""Of one rank."""


class _Claim:
    """One process that claims a rank. `owner` is None while its connection is broken, since `away`."""

    def __init__(self, served: Served, manifest: bytes, owner: Owner) -> None:
        self.served = served
        self.manifest = manifest
        self.owner: Owner | None = owner
        self.away = 0.0
        self.told: str | None = None
        """Code of the last `Standing` sent over this connection."""

    @property
    def rank(self) -> Rank:
        """What it claims."""
        return self.served.rank


class _Link:
    """One connection: when it was heard, and whom it speaks for."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.claim: _Claim | None = None


class Table:
    """What is registered. Of too many claims of one rank the last is not kept."""

    def __init__(self, max_claims: int = MAX_CLAIMS) -> None:
        self._max_claims = max_claims
        self._links: dict[Owner, _Link] = {}
        self._claims: dict[Rank, list[_Claim]] = {}
        self._rooms = Rooms()
        self._manifests: dict[bytes, tuple[bytes, Manifest]] = {}
        self._tick: float | None = None

    def step(self, event: Event | TimePassed) -> list[Action]:
        """What follows from an event. Of a connection that is gone or closed no other event may come."""
        if isinstance(event, TimePassed):
            return self._time_passed(event.now)
        if isinstance(event, Gone):
            return self._forget(event.owner, event.now, stays=True)
        link = self._links.setdefault(event.owner, _Link(event.now))
        link.heard = event.now
        match event:
            case Registered(record=record):
                return self._register(event.owner, link, record)
            case Beaten(incarnation=incarnation):
                known = not incarnation or (link.claim is not None and link.claim.served.incarnation == incarnation)
                return [SendMessage(event.owner, Beat() if known else Again())]
            case RoomOpened(room=room):
                self._rooms.open(event.owner, room)
            case RoomClosed(room=room):
                self._rooms.close(event.owner, room)
            case LookedUp(serial=serial, room=room):
                return [SendMessage(event.owner, self.route(serial, room))]
            case Left():
                gone = self._forget(event.owner, event.now, stays=False)
                return [CloseLink(event.owner, "closed in order"), *gone]
        return []

    def ranks(self) -> tuple[Served, ...]:
        """Whom decode is told of, in rank order."""
        found = self._found()
        return tuple(found[rank].served for rank in sorted(found))

    def route(self, serial: int, room: int) -> Route:
        """All ranks of the group that serves the room, or what is missing."""
        found = self._found()
        if not found:
            return Route(serial, "no prefill rank has registered", (), b"")
        some = next(iter(found.values()))
        sizes = self._manifests[some.manifest][1].parallel
        dp = min(rank.dp for rank in found) if sizes.dp == 1 else self._group_of(room, found)
        if dp is None:
            return Route(serial, f"no prefill DP group has opened room {room}", (), b"")
        wanted = [Rank(pp, tp, dp) for pp in range(sizes.pp) for tp in range(sizes.attn_tp)]
        absent = [str(rank) for rank in wanted if rank not in found]
        if absent:
            return Route(serial, f"prefill ranks not registered: {', '.join(absent[:8])}", (), b"")
        manifests = {found[rank].manifest for rank in wanted}
        if len(manifests) > 1:
            return Route(serial, "prefill ranks registered with different manifests", (), b"")
        return Route(serial, "", tuple(found[rank].served for rank in wanted), manifests.pop())

    # Claims.

    def _register(self, owner: Owner, link: _Link, record: Register) -> list[Action]:
        try:
            manifest = self._interned(record.manifest)
        except TransferError as error:
            return [SendMessage(owner, Standing(error.code, error.message))]
        served = Served(record.rank, record.host, record.port, record.incarnation)
        actions = self._one_rank(link, served)
        claims = self._claims.setdefault(served.rank, [])
        claim = next((one for one in claims if one.served.incarnation == served.incarnation), None)
        if claim is None:
            if len(claims) >= self._max_claims and not _make_room(claims):
                return [*actions, SendMessage(owner, _taken(claims[0]))]
            claim = _Claim(served, manifest, owner)
            claims.append(claim)
        elif claim.owner not in (None, owner):  # it came back before its old connection was seen to end
            actions.append(CloseLink(claim.owner, "the rank came back over another connection"))
            self._unlink(claim.owner)
        claim.served, claim.manifest, claim.owner, claim.told = served, manifest, owner, None
        link.claim = claim
        return actions + self._settle(served.rank)

    def _one_rank(self, link: _Link, served: Served) -> list[Action]:
        """A connection speaks for one process: what it said before, if that was another, counts no more."""
        claim = link.claim
        if claim is None or (claim.rank, claim.served.incarnation) == (served.rank, served.incarnation):
            return []
        link.claim = None
        return self._withdraw(claim)

    def _forget(self, owner: Owner, now: float, *, stays: bool) -> list[Action]:
        """A connection has ended; its claim keeps its turn for a while where it `stays`."""
        claim = self._unlink(owner)
        if claim is None:
            return []
        if not stays:
            return self._withdraw(claim)
        claim.owner, claim.away = None, now
        return self._settle(claim.rank)

    def _unlink(self, owner: Owner) -> _Claim | None:
        """Forget a connection and its rooms; whom it spoke for."""
        self._rooms.drop(owner)
        link = self._links.pop(owner, None)
        return link.claim if link is not None else None

    def _withdraw(self, claim: _Claim) -> list[Action]:
        """A claim has lost its turn."""
        self._claims[claim.rank] = [one for one in self._claims[claim.rank] if one is not claim]
        if not self._claims[claim.rank]:
            del self._claims[claim.rank]
        return self._settle(claim.rank)

    def _settle(self, rank: Rank) -> list[Action]:
        """Tell those that claim a rank how they stand, where that has changed."""
        actions: list[Action] = []
        present = _present(self._claims.get(rank, []))
        for claim in present:
            standing = Standing("", "") if claim is present[0] else _taken(present[0])
            if claim.told != standing.code:
                claim.told = standing.code
                actions.append(SendMessage(claim.owner, standing))
        return actions

    def _found(self) -> dict[Rank, _Claim]:
        """Of each rank the first claim whose connection stands."""
        return {rank: there[0] for rank, claims in self._claims.items() if (there := _present(claims))}

    def _interned(self, data: bytes) -> bytes:
        """The same manifest as one object, however many ranks send it. Raises ManifestError."""
        if data not in self._manifests:
            self._manifests[data] = (data, decode_manifest(data, "registry"))
        return self._manifests[data][0]

    def _group_of(self, room: int, found: dict[Rank, _Claim]) -> int | None:
        """The DP group that opened the room last and still has it open."""
        for owner in self._rooms.openers(room):
            claim = self._links[owner].claim
            if claim is not None and found.get(claim.rank) is claim:
                return claim.rank.dp
        return None

    # Time.

    def _time_passed(self, now: float) -> list[Action]:
        late = max(0.0, now - self._tick - TICK_S) if self._tick is not None else 0.0
        self._tick = now
        actions: list[Action] = []
        for owner, link in list(self._links.items()):
            link.heard = min(now, link.heard + late)
            if now - link.heard > TTL_S:
                actions.append(CloseLink(owner, f"no heartbeat for {TTL_S:g} s"))
                actions += self._forget(owner, now, stays=False)
        for claims in list(self._claims.values()):
            for claim in claims:
                if claim.owner is None and now - claim.away > AWAY_S:
                    actions += self._withdraw(claim)
        used = {claim.manifest for claims in self._claims.values() for claim in claims}
        self._manifests = {data: value for data, value in self._manifests.items() if data in used}
        return actions


def _present(claims: list[_Claim]) -> list[_Claim]:
    return [claim for claim in claims if claim.owner is not None]


def _taken(holder: _Claim) -> Standing:
    where = f"{holder.served.host}:{holder.served.port}"
    return Standing("PD4026", f"prefill {holder.rank} is registered already by a living process, at {where}")


def _make_room(claims: list[_Claim]) -> bool:
    """Whether one gave way to a further claim: somebody who is away."""
    away = [claim for claim in claims if claim.owner is None]
    for claim in away[:1]:
        claims.remove(claim)
    return bool(away)
