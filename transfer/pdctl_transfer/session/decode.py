"""The receiving side: one decode rank. Its requests are `machine/receiver.py`'s, its bytes `drive/landing.py`'s."""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.area import Area, shared_area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.cost import possible
from pdctl_transfer.session.checks import Held, default_check, fallback_fault
from pdctl_transfer.session.drive.client import Address
from pdctl_transfer.session.drive.driver import Driver
from pdctl_transfer.session.drive.finder import Finder
from pdctl_transfer.session.drive.jobs import answered
from pdctl_transfer.session.drive.keeper import Kept
from pdctl_transfer.session.drive.landing import FEW_SAMPLES, HANDS, Aim
from pdctl_transfer.session.drive.link import Link
from pdctl_transfer.session.failure import WITHDRAWN, Failure
from pdctl_transfer.session.handles import ReceiveHandle, ids_of
from pdctl_transfer.session.identity import Check, Identity, identity
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.receiver import Receiver
from pdctl_transfer.session.options import Options, Rank
from pdctl_transfer.session.wire import messages as say
from pdctl_transfer.telemetry import Telemetry


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
        me = identity(manifest, rank, regions, fabric, self.options, check, copier)
        self._driver = _Decode(me, self.telemetry)

    def open(
        self,
        room: int,
        registry: Address,
        indices: Mapping[str, Sequence[int]],
        *,
        skip: Mapping[str, int] | None = None,
    ) -> ReceiveHandle:
        """Ask for a room's state, to be written to the items with these ids, one list a kind of the rank's stage.

        skip: of each kind, how many of the first items are here already, as a prefix cache holds them; no ids are given
        for those. The items belong to the transfer until the handle is confirmed, or failed and `reusable`.
        """
        driver = self._driver
        handle = ReceiveHandle(room, lambda _, failure: driver.abort(number, failure))
        number = driver.adopt(handle)
        driver.begin(number, driver.open, room, registry, ids_of(indices), dict(skip or {}))
        return handle

    def decline(self, room: int, registry: Address, reason: str) -> ReceiveHandle:
        """Say that a room is not needed, which its prefill ranks hold open: all of it is here already, or it came
        another way. It ends there as withdrawn (PD4035), as no failure."""
        return self._without(room, registry, Failure(WITHDRAWN, f"not needed by the decode engine: {reason}", "decode"))

    def refuse(self, room: int, registry: Address, code: str, reason: str) -> ReceiveHandle:
        """Say that a room cannot be asked for, for a reason of the decode engine's: its prefill ranks hear so at once,
        with this catalog code, and need not wait until `bootstrap_s` is over."""
        cause = f"room {room}: refused by the decode engine: {reason}"
        return self._without(room, registry, Failure(code, cause, "decode"))

    def _without(self, room: int, registry: Address, failure: Failure) -> ReceiveHandle:
        driver = self._driver
        handle = ReceiveHandle(room, lambda _, failure: driver.abort(number, failure))
        number = driver.adopt(handle)
        driver.begin(number, driver.decline, room, registry, failure)
        return handle

    def close(self, drain_s: float = 5.0) -> bool:
        """Fail what is open (PD4034), and wait up to `drain_s` seconds until nothing can land any more.

        True: it has left, and the memory may be deregistered and freed. False: a prefill rank may still write into it;
        this side stays until each has said that it does not, or is shown to have ended, and leaves then. Ask again, or
        keep the memory. Safe to call twice.
        """
        return self._driver.close(drain_s)

    @property
    def quarantined(self) -> int:
        """Requests that have failed and whose buffers may not be used again yet."""
        return self._driver.machine.quarantined


class _Decode(Driver):
    """The driver of a receiver: registries, links to prefill ranks, and workers that put into place and look."""

    machine: Receiver

    def __init__(self, me: Identity, telemetry: Telemetry) -> None:
        options = me.options
        nbytes = options.staging_bytes if me.copier.can_copy else 0
        self.area: Area = shared_area(me.fabric, me.copier, nbytes, options.chunk_bytes, "staging")
        super().__init__(me, telemetry, HANDS)
        self._held = Held(me.manifest, me.rank.pp, me.regions)
        self._aims: dict[Key, Aim] = {}
        self._kept: dict[Peer, Kept] = {}
        self._finder = Finder(self.me, self.loop, self.tell)
        self.machine = Receiver(options, self.area.slots, self._chunks, self._finder.unanswered)
        telemetry.gauge("open_rooms", "Rooms that have not ended", lambda: self.machine.open)
        quarantined = "Requests that have failed and whose buffers may not be used again yet"
        telemetry.gauge("quarantined", quarantined, lambda: self.machine.quarantined)
        telemetry.gauge("staging_free_slots", "Staging slots that are not lent", lambda: self.area.free)

    def open(
        self, number: int, room: int, registry: Address, ids: dict[str, NDArray[np.int64]], skip: dict[str, int]
    ) -> None:
        """An engine asks for a room. On the loop thread."""
        attempt = os.urandom(8).hex()
        fault = fallback_fault(self.me)
        wrong = self._held.fault(ids, unique=True)
        if wrong:
            fault = Failure("PD4021", f"room {room}: decode {wrong}", "decode")
        self._aims[(room, attempt)] = Aim(ids, skip)
        self.tell(on.Opened(time.monotonic(), number, room, fault, attempt, registry))

    def decline(self, number: int, room: int, registry: Address, failure: Failure) -> None:
        """An engine opens a room only to say that it does not ask for it, and why. On the loop thread."""
        attempt = os.urandom(8).hex()
        self._aims[(room, attempt)] = Aim({})
        self.tell(on.Opened(time.monotonic(), number, room, failure, attempt, registry))

    def leave(self) -> None:
        """See `Driver`."""
        self._finder.close()
        for kept in list(self._kept.values()):
            kept.close()
        self._kept.clear()
        self.area.close()

    # Links.

    def needs(self, peer: Peer) -> bool:
        """See `Keeper`."""
        return self.machine.needs(peer)

    def unkept(self, peer: Peer) -> None:
        """See `Keeper`. What the registry said may have changed, too."""
        self._kept.pop(peer, None)
        self._finder.forget()

    def linked(self, link: Link) -> None:
        """See `Keeper`."""
        self.telemetry.linked(link.name, link.handshake_s)
        self.tell(on.LinkReady(time.monotonic(), link.incarnation))

    def heard(self, link: Link, message: say.AnyMessage) -> None:
        """See `Keeper`."""
        if isinstance(message, say.ANSWERS):
            self.tell(on.Heard(time.monotonic(), link.incarnation, message))
        else:
            link.channel.fail("not a message for a decode rank")

    # What the machine wants.

    def act(self, action: do.AnyAction) -> None:
        """See `Driver`."""
        match action:
            case do.SendMessage(peer=peer, message=message):
                self._send(peer, message)
            case do.AskFor(key=key, rank=rank, peer=peer):
                self._ask(key, rank, peer)
            case do.StartJob(job=job, work=work):
                self._start(job, work)
            case do.GiveBack(slots=slots):
                self.area.give(*slots)
            case do.Borrow():
                self._borrow(action)
            case do.Unborrow(key=key, rank=rank):
                self.area.unwish((self.me.incarnation, key, rank))
            case do.Want(peer=peer, address=address):
                if peer not in self._kept:
                    self._kept[peer] = Kept(self, peer, address)
                self._kept[peer].want()
            case do.Find():
                self._finder.find(action)
            case do.Unfind(key=key):
                self._finder.unfind(key)
            case do.Deliver(handle=handle, metadata=metadata):
                held = self.handles[handle]
                if isinstance(held, ReceiveHandle):
                    held.delivered = held.delivered or metadata
            case do.Count(leg=key):
                aim = self._aims[key]
                for (rank, kind), seconds in aim.seconds.items():
                    self.telemetry.scattered(key[0], aim.names[rank], kind, seconds)
            case do.Forget(key=key):
                self._aims.pop(key, None)
                self._finder.unfind(key)
            case _:
                raise TypeError(f"no action of a receiver: {action}")

    def _send(self, peer: Peer, message: say.AnyMessage) -> None:
        kept = self._kept.get(peer)
        if kept is None:
            return
        if isinstance(message, say.Decline):
            kept.decline(message)
        elif kept.link is not None:
            kept.link.send(message)

    def _ask(self, key: Key, rank: RankId, peer: Peer) -> None:
        kept, aim = self._kept.get(peer), self._aims[key]
        if kept is None or kept.link is None or kept.link.hello is None or kept.link.pair is None:
            return
        hello, mine = kept.link.hello, RankId(self.me.rank.pp, self.me.rank.tp)
        able = possible(
            sender_copies=hello.copies, receiver_copies=self.me.copier.can_copy, staging=self.area.slots > 0
        )
        chunk = min(self.options.chunk_bytes, hello.chunk_bytes)
        part = kept.link.pair.part(rank, mine, hello.regions, self.me.regions)
        ways = aim.ask(rank, part, self.me.fabric.observed_transport(), chunk, able)
        aim.names[rank] = kept.link.name
        kept.asks(key[0])
        kept.link.send(say.Ask(*key, aim.encoded, ways, self.options.verify, aim.skip))

    def _chunks(self, key: Key, rank: RankId, more: say.More | None) -> int | Failure:
        aim = self._aims[key]
        if more is None:
            return len(aim.chunks.get(rank, ()))
        made = answered("decode", partial(aim.extend, rank, more))
        if made is None:
            cause = f"room {key[0]}: {aim.names[rank]} told of an installment that is none of what was asked for"
            return Failure("PD4020", cause, "prefill")
        return made

    def _start(self, number: int, work: do.Work) -> None:
        seconds = self.options.transfer_s
        match work:
            case do.Place(key=key, number=chunk, slots=slots):
                bodies = self._aims[key].place(self.me.copier, self.area, chunk, slots)
                self.jobs.start(number, bodies, lanes={}, seconds=seconds)
            case do.Check(key=key, sums=sums):
                aim = self._aims[key]
                body = aim.check(self.me.copier, self.options.verify, sums)
                if self.options.verify != "full" and aim.samples <= FEW_SAMPLES:
                    self.jobs.run(number, body)
                else:
                    self.jobs.start(number, [body], lanes={}, seconds=seconds)
            case _:
                raise TypeError(f"no work of a receiver: {work}")

    def _borrow(self, wish: do.Borrow) -> None:
        def got(slot: int) -> None:
            lent = on.Lent(time.monotonic(), wish.key, wish.rank, wish.number, slot, self.area.base(slot))
            if not self.post(lent):
                self.area.give(slot)

        borrower = (self.me.incarnation, wish.key, wish.rank)
        self.area.wish(borrower, got, siblings=wish.siblings, place=wish.place, near=wish.near)
