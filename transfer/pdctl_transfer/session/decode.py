"""The receiving side: one decode rank, its links to prefill ranks, and the requests that wait for their state.

A request asks every prefill rank that writes into this one, its *sources*, and is confirmed when all of them are done
and what landed was checked. Whatever ends it otherwise, its buffers stay quarantined until each source has said, or
shown by being gone, that nothing more will land.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.area import shared_area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.packing import Strip, chunks
from pdctl_transfer.session.bytes.verify import verify
from pdctl_transfer.session.checks import default_check, fallback_fault, own_fault
from pdctl_transfer.session.drive.client import Address
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.identity import Check, Identity, identity
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.options import Options, Rank, Region
from pdctl_transfer.session.quarantine import Quarantine
from pdctl_transfer.session.receiving import ReceiveHandle, Request, Source
from pdctl_transfer.session.sources import Finder
from pdctl_transfer.session.staging import HANDS, Lender, Order
from pdctl_transfer.session.timers import Timer
from pdctl_transfer.session.wire import messages
from pdctl_transfer.telemetry import Telemetry

ANSWERS = messages.Ready | messages.Start | messages.Landed | messages.Done | messages.Failed | messages.Settled


class DecodePeer:
    """One decode rank. `regions` hold its memory, one an entry of its stage, registered with `fabric` by the caller.

    copier: what scatters and sums in that memory; not needed where the CPU can.

    Raises TransferError PD4022 where regions and manifest disagree, PD4016 where `verify` needs a copier and there is
    none, FabricError PD4014 without memory for staging.
    """

    def __init__(
        self,
        manifest: Manifest,
        rank: Rank,
        regions: Iterable[Region],
        fabric: Fabric,
        options: Options | None = None,
        *,
        check: Check = default_check,
        copier: Copier | None = None,
    ) -> None:
        self.options = options or Options()
        self.telemetry = Telemetry("decode", str(rank), self.options.events)
        self._me: Identity = identity(manifest, rank, regions, fabric, self.options, check, copier)
        self.telemetry.gauge("open_rooms", "Rooms that have not ended", lambda: len(self._rooms))
        quarantined = "Requests that have failed and whose buffers may not be used again yet"
        self.telemetry.gauge("quarantined", quarantined, lambda: len(self._requests) - len(self._rooms))
        self.telemetry.gauge("staging_free_slots", "Staging slots that are not lent", lambda: self._area.free)
        nbytes = self.options.staging_bytes if self._me.copier.can_copy else 0
        self._area = shared_area(fabric, self._me.copier, nbytes, self.options.chunk_bytes, "staging")
        self.loop = Loop(f"pdctl-decode-{rank}")
        self._workers = Workers(f"pdctl-scatter-{rank}", HANDS)
        self._lender = Lender(self.loop, self._area, self._me.copier, self._workers)
        self._finder = Finder(self.loop, self._me, self, self._fail, staging=self._area.slots > 0)
        self._requests: dict[tuple[int, str], Request] = {}
        self._rooms: dict[int, Request] = {}
        self._quarantine = Quarantine(self.loop, self._me, self._released)

    def open(self, room: int, registry: Address, indices: Mapping[str, Sequence[int]]) -> ReceiveHandle:
        """Ask for a room's state, to be written to the items with these ids, one list a kind.

        The items belong to the transfer until the handle is confirmed, or failed and `reusable`.
        """
        handle = ReceiveHandle(self, room)
        ids = {kind: np.asarray(values, dtype=np.int64).reshape(-1) for kind, values in indices.items()}
        self.loop.call(self._open, Request(handle, registry, ids))
        return handle

    def close(self) -> None:
        """Fail what is open (PD4034) and leave. Safe to call twice."""

        def end() -> None:
            gone = Failure("PD4034", "the decode engine closed", "decode")
            for request in list(self._rooms.values()):
                self._fail(request, gone)

        self.loop.call(end)
        self._workers.close(5.0)

        def leave() -> None:
            self._quarantine.close()
            self._finder.close()
            self._area.close()

        self.loop.call(leave)
        self.loop.stop()

    @property
    def quarantined(self) -> int:
        """Requests that have failed and whose buffers may not be used again yet."""
        count: int = self.loop.ask(lambda: len(self._requests) - len(self._rooms))
        return count

    # The engine's calls, on the loop thread.

    def _open(self, request: Request) -> None:
        handle = request.handle
        fault = own_fault(self._me.manifest, self._me.rank.pp, self._me.regions, request.indices, unique=True)
        refusal = None
        if request.room in self._rooms:
            refusal = Failure("PD4023", f"room {request.room} is open already", "decode")
        elif fault:
            refusal = Failure("PD4021", f"room {request.room}: decode {fault}", "decode")
        else:
            refusal = fallback_fault(self._me)
        if refusal is not None:
            handle._life.settle()
            handle._life.fail(refusal)
            self._ended(request, refusal)
            return
        self._rooms[request.room] = self._requests[request.key] = request
        request.timer = Timer(self.loop, lambda failure: self._fail(request, failure))
        request.timer.arm(self.options.bootstrap_s, lambda: self._finder.why_not_met(request))
        self._finder.find(request)

    def fail_room(self, handle: ReceiveHandle, failure: Failure) -> None:
        """`Handle.abort`, on the loop thread."""
        request = self._rooms.get(handle.room)
        if request is not None and request.handle is handle:
            self._fail(request, failure)

    # Links.

    def ready(self, link: Link) -> None:
        """Ask what waited for it."""
        self.telemetry.linked(link.name, link.handshake_s)
        self._finder.ready(link, list(self._rooms.values()))

    def silent(self, link: Link, failure: Failure) -> None:
        """Fail what waits for that rank; its connection tells later what became of it."""
        for request in self._waiting_for(link):
            self._fail(request, failure)

    def broken(self, link: Link, failure: Failure) -> None:
        """Fail what waits for that rank, and find out whether it still writes."""
        address = self._finder.forget(link)
        for request in self._waiting_for(link):
            self._fail(request, failure)
        for request in list(self._requests.values()):
            for rank, source in request.sources.items():
                if source.link is link and not source.settled and address is not None:
                    self._quarantine.add(address, link.incarnation, request.key, rank)

    def waiting_rooms(self, link: Link) -> tuple[int, ...]:
        """Rooms that need this link."""
        return tuple(request.room for request in self._waiting_for(link))

    def refused_rooms(self, rooms: tuple[int, ...], failure: Failure) -> None:
        """Prefill names none: what waits for the link fails with it."""

    def _waiting_for(self, link: Link) -> list[Request]:
        return [r for r in self._rooms.values() if any(s.link is link and not s.done for s in r.sources.values())]

    def message(self, link: Link, message: messages.AnyMessage) -> None:
        """One message about a request; unknown, late and repeated ones change nothing."""
        if not isinstance(message, ANSWERS):
            link.channel.fail("not a message for a decode rank")
            return
        request = self._requests.get((message.room, message.attempt))
        if request is None:
            return
        source = next((source for source in request.sources.values() if source.link is link), None)
        if source is None:
            return
        match message:
            case messages.Ready():
                source.ready = True
                self._met(request)
            case messages.Start():
                self._started(request, source)
            case messages.Landed(chunk=chunk):
                if source.order is not None:
                    self._lender.landed(source.order, chunk)
            case messages.Done(metadata=metadata, sums=sums):
                if not source.done:
                    source.done, source.settled, source.sums = True, True, sums
                    request.handle._metadata = request.handle._metadata or metadata
                    self._landed(request)
                    self._release(request)
            case messages.Failed(code=code, cause=cause, side=side):
                self._fail(request, Failure(code, cause, "decode" if side == "decode" else "prefill"))
            case messages.Settled():
                source.settled = True
                self._release(request)

    # The life of a request.

    def _met(self, request: Request) -> None:
        if request.all_ready and request.handle._life.advance("waiting") and request.timer is not None:
            request.timer.arm(self.options.waiting_s, lambda: request.unsent(self.options))

    def _started(self, request: Request, source: Source) -> None:
        if self._rooms.get(request.room) is not request or source.started:
            return
        source.started = True
        staged = source.part.split(source.ways).staged if source.part is not None else {}
        if staged:
            self._lender.start(self._order(request, source, staged))
        if request.handle._life.advance("transferring") and request.timer is not None:
            request.timer.arm(self.options.transfer_s, lambda: request.incomplete(self.options))

    def _order(self, request: Request, source: Source, staged: Mapping[str, tuple[Strip, ...]]) -> Order:
        limit = source.link.chunk_bytes
        pieces = [(k, c) for k, strips in staged.items() for c in chunks(strips, len(request.indices[k]), limit)]

        def grant(number: int, base: int) -> None:
            source.link.send(messages.Grant(request.room, request.attempt, number, base))

        placed = partial(self._placed, request)
        ranks = sorted(request.sources)
        place = next(i for i, rank in enumerate(ranks) if request.sources[rank] is source)
        source.order = Order(request.key, pieces, request.indices, grant, placed, len(ranks), place)
        return source.order

    def _placed(self, request: Request) -> None:
        """A staged chunk is in place, or was left out because the request has failed."""
        self._landed(request)
        self._release(request)

    def _landed(self, request: Request) -> None:
        """Something came into place: when all is, look at it, then confirm."""
        if not request.complete or request.verifying or self._rooms.get(request.room) is not request:
            return
        request.verifying = True
        self._workers.submit(lambda: self._verify(request))

    def _verify(self, request: Request) -> None:
        """On a worker."""
        sent = [(source.part, source.sums) for source in request.sources.values() if source.part is not None]
        fault = verify(sent, self._me.copier, request.indices, self.options.verify)
        self.loop.call(self._verified, request, fault)

    def _verified(self, request: Request, fault: str) -> None:
        if self._rooms.get(request.room) is not request:
            return
        if fault:
            self._fail(request, Failure("PD4040", f"room {request.room}: {fault}", "prefill"))
            return
        for source in request.sources.values():
            source.link.send(messages.Confirm(request.room, request.attempt))
            for kind, seconds in source.order.seconds.items() if source.order else ():
                self.telemetry.scattered(request.room, source.link.name, kind, seconds)
        self._close(request)
        del self._requests[request.key]
        request.handle._life.settle()
        request.handle._life.advance("confirmed")
        self.telemetry.ended(request.room, "", "", "", request.handle._life.reached)

    def _fail(self, request: Request, failure: Failure) -> None:
        if not request.handle._life.fail(failure):
            return
        self._close(request)
        self._ended(request, failure)
        for source in request.sources.values():
            if source.order is not None:
                self._lender.drop(source.order)
            if source.asked:
                source.link.send(messages.Failed(*request.key, failure.code, failure.cause, failure.side))
            elif not source.link.channel.over:
                self._finder.decline(request, source, failure)
        self._release(request)

    def _ended(self, request: Request, failure: Failure) -> None:
        reached = request.handle._life.reached
        self.telemetry.ended(request.room, failure.code, failure.side, failure.cause, reached)

    def _close(self, request: Request) -> None:
        if request.timer is not None:
            request.timer.stop()
        if self._rooms.get(request.room) is request:
            del self._rooms[request.room]

    def _released(self, key: tuple[int, str], rank: RankId) -> None:
        """Quarantine: this source is known to write no more."""
        request = self._requests.get(key)
        if request is not None and rank in request.sources:
            request.sources[rank].settled = True
            self._release(request)

    def _release(self, request: Request) -> None:
        if self._rooms.get(request.room) is request or not request.settled:
            return
        self._requests.pop(request.key, None)
        for source in request.sources.values():
            if source.order is not None:
                self._lender.release(source.order)
        request.handle._life.settle()
