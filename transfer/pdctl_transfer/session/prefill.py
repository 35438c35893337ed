"""The sending side: one prefill rank. Its rooms are `machine/sender.py`'s, its bytes `drive/writes.py`'s."""

import os
import threading
import time
from collections.abc import Iterable
from functools import partial

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.area import Area, shared_area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.checks import Held, ask_fault, default_check, fallback_fault, sent_fault
from pdctl_transfer.session.drive import writes
from pdctl_transfer.session.drive.client import Registration
from pdctl_transfer.session.drive.driver import Driver
from pdctl_transfer.session.drive.jobs import answered
from pdctl_transfer.session.drive.legwork import LegWork, Partner, windows
from pdctl_transfer.session.drive.link import Link
from pdctl_transfer.session.drive.listener import Listener
from pdctl_transfer.session.drive.loop import Channel
from pdctl_transfer.session.drive.pulse import PULSE, Vital
from pdctl_transfer.session.drive.sending import body_of, lanes_of
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.handles import SendHandle, Sent
from pdctl_transfer.session.identity import Check, Identity, identity
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.machine.sender import Sender
from pdctl_transfer.session.options import Options, Rank
from pdctl_transfer.session.wire import messages as say
from pdctl_transfer.telemetry import Telemetry


class PrefillPeer:
    """One prefill rank. `regions` hold its memory, one an entry of its stage, registered with `fabric` by the caller.

    copier: what gathers and sums in that memory; not needed where the CPU can.

    Raises TransferError PD4022 where regions and manifest disagree, PD4016 where `verify` needs a copier and there is
    none, FabricError PD4015 where it cannot listen.
    """

    def __init__(
        self,
        manifest: Manifest,
        rank: Rank,
        regions: Iterable[Region],
        fabric: Fabric,
        *,
        registry: tuple[str, int],
        options: Options | None = None,
        check: Check = default_check,
        copier: Copier | None = None,
    ) -> None:
        options = options or Options()
        self.options = options
        self.telemetry = Telemetry("prefill", str(rank), options.events)
        me = identity(manifest, rank, regions, fabric, options, check, copier)
        self._driver = _Prefill(me, self.telemetry, registry)

    @property
    def port(self) -> int:
        """Port of the control listener."""
        return self._driver.listener.port

    def open(self, room: int) -> SendHandle:
        """Expect decode ranks to ask for this room. A room that is open already fails at once (PD4023)."""
        return self._begin(room, None)

    def refuse(self, room: int, code: str, reason: str) -> SendHandle:
        """Say that a room will not be served, for a reason of the prefill engine's: whoever asks for it hears so at
        once, with this catalog code, and need not wait until `bootstrap_s` is over."""
        return self._begin(room, Failure(code, f"room {room}: refused by the prefill engine: {reason}", "prefill"))

    def _begin(self, room: int, fault: Failure | None) -> SendHandle:
        driver = self._driver
        handle = SendHandle(room, lambda _, failure: driver.abort(number, failure), lambda *sent: send(*sent))
        number = driver.adopt(handle)

        def send(sent: Sent, metadata: bytes) -> None:
            driver.post(on.Sent(time.monotonic(), number, sent, metadata, sent.last))

        driver.begin(number, driver.open, room, fault)
        return handle

    def close(self, drain_s: float = 5.0) -> bool:
        """Fail what is open (PD4034), and wait up to `drain_s` seconds until nothing reads or writes any more.

        True: it has left, and the memory may be deregistered and freed. False: writes may still be under way; it goes
        on proving that they are over, and leaves then. Ask again, or keep the memory. Safe to call twice.
        """
        return self._driver.close(drain_s)


class _Prefill(Driver):
    """The driver of a sender: a listener, links to decode ranks, and workers that write."""

    machine: Sender

    def __init__(self, me: Identity, telemetry: Telemetry, registry: tuple[str, int]) -> None:
        options = me.options
        chunk, slots = options.chunk_bytes, options.writers if me.copier.can_copy else 0
        self.scratch: Area = shared_area(me.fabric, me.copier, slots * chunk, chunk, "scratch")
        super().__init__(me, telemetry, options.writers)
        self._held = Held(me.manifest, me.rank.pp, me.regions)
        self._legs: dict[on.Key, LegWork] = {}
        self._partners: dict[on.Peer, Partner] = {}
        self._links: dict[on.Peer, Link] = {}
        self._all_links: set[Link] = set()
        self.machine = Sender(options, self._cut, self._unregistered)
        gathering = threading.Semaphore(max(1, len(os.sched_getaffinity(0)) // 2))  # so that the wire soon has a chunk
        self._writes = writes.Resources(
            me.fabric, me.copier, me.regions, self.scratch, gathering, self._began, self._faltered
        )
        telemetry.gauge("open_rooms", "Rooms that have not ended", lambda: len(self.machine.rooms))
        telemetry.gauge("unsettled", "Legs that are under way, or in quarantine", lambda: len(self.machine.legs))
        telemetry.gauge("scratch_free_slots", "Scratch slots that are not in use", lambda: self.scratch.free)
        try:
            self.listener = Listener(self.loop, options.host, 0, self._accept, options.secret)
        except OSError as error:
            self.loop.stop()
            self.scratch.close()
            raise FabricError(f"cannot listen on {options.host}: {error}", code="PD4015") from error
        host = options.advertise or options.host
        record = say.Register(me.rank, host, self.listener.port, me.incarnation, me.encoded)
        self._registration: Registration = self.loop.ask(lambda: Registration(self.loop, registry, options, record))

    def open(self, number: int, room: int, fault: Failure | None) -> None:
        """An engine opened a room, or refuses it. On the loop thread."""
        self.tell(on.Opened(time.monotonic(), number, room, fault or fallback_fault(self.me)))

    def retire(self) -> None:
        """Leave the registry; the listener stays for those who must hear how it ends."""
        self._registration.close()

    def wake(self) -> None:
        """See `Driver`."""
        self.scratch.wake()

    def leave(self) -> None:
        """See `Driver`."""
        self.listener.close()
        for link in list(self._all_links):
            link.close()
        self.scratch.close()

    # Links.

    def _accept(self, channel: Channel) -> None:
        self._all_links.add(Link(self.me, channel, self, connector=False))

    def greeted(self, link: Link) -> None:
        """Nothing: decode speaks first."""

    def ready(self, link: Link) -> None:
        """Decode ranks ask when they want. A newer connection of the same one takes the place of an older."""
        peer, hello, pair = link.incarnation, link.hello, link.pair
        assert hello is not None
        assert pair is not None
        if peer not in self._partners:
            mine, his = RankId(self.me.rank.pp, self.me.rank.tp), RankId(hello.rank.pp, hello.rank.tp)
            vital = Vital(link.channel.host, hello.pulse)
            chunk = min(self.options.chunk_bytes, hello.chunk_bytes)
            part, expected = pair.part(mine, his, self.me.regions, hello.regions), pair.decode_ranks(mine)
            held = Held(pair.decode, hello.rank.pp, hello.regions)
            last = windows(pair.prefill, pair.decode)
            self._partners[peer] = Partner(hello, held, part, expected, chunk, link.name, vital, last)
            self.workers.submit(vital.meet, PULSE)
        old = self._links.get(peer)
        self._links[peer] = link
        if old is not None:
            self._all_links.discard(old)
            old.drop()
        self.telemetry.linked(link.name, link.handshake_s)
        self.tell(on.LinkReady(time.monotonic(), peer))

    def silent(self, link: Link, failure: Failure) -> None:
        """Frozen, or cut off. The connection is given up: if only that is dead, decode comes back by another."""
        if self._links.get(link.incarnation) is link:
            self.tell(on.LinkSilent(time.monotonic(), link.incarnation, failure))
        link.channel.fail(failure.cause)

    def refused(self, link: Link, failure: Failure) -> None:
        """Decode declines the rooms that this means."""

    def broken(self, link: Link, failure: Failure) -> None:
        """The connection is over; decode may come back."""
        self._all_links.discard(link)
        if self._links.get(link.incarnation) is link:
            del self._links[link.incarnation]
            self.tell(on.LinkBroken(time.monotonic(), link.incarnation, failure, link.closed))
        self._forget_partner(link.incarnation)

    def _forget_partner(self, peer: on.Peer) -> None:
        """Of who is not linked, and nothing is under way to, nothing is kept."""
        if peer not in self._links and not any(leg.partner.hello.incarnation == peer for leg in self._legs.values()):
            self._partners.pop(peer, None)

    def message(self, link: Link, message: say.AnyMessage) -> None:
        """One message about a request."""
        if link.is_ready and self._links.get(link.incarnation) is not link:
            return
        match message:
            case say.Ask():
                self._ask(link, message)
            case say.Grant() | say.Confirm() | say.Failed() | say.Withdraw() | say.Decline():
                self.tell(on.Heard(time.monotonic(), link.incarnation, message))
            case _:
                link.channel.fail("not a message for a prefill rank")

    def _ask(self, link: Link, ask: say.Ask) -> None:
        if any(len(data) % 8 for data in ask.indices.values()):
            link.channel.fail("ids that are no int64")
            return
        partner = self._partners[link.incarnation]
        key = (ask.room, ask.attempt)
        if key not in self._legs:
            leg = self._legs[key] = LegWork(ask, partner)
            leg.fault = ask_fault(self.me, partner.held, ask, leg.there)
        rank = partner.hello.rank
        self.tell(
            on.Asked(time.monotonic(), link.incarnation, RankId(rank.pp, rank.tp), rank.dp, partner.expected, ask)
        )
        if key not in self.machine.legs:  # refused
            self._legs.pop(key, None)

    # What the machine wants.

    def act(self, action: do.AnyAction) -> None:
        """See `Driver`."""
        match action:
            case do.SendMessage(peer=peer, message=message):
                link = self._links.get(peer)
                if link is not None:
                    link.send(message)
            case do.StartJob(job=job, work=work):
                self._start(job, work)
            case do.GiveBack(slots=slots):
                self.scratch.give(*slots)
            case do.Stuck(slots=slots):
                for slot in slots:
                    self.scratch.stuck(slot)
            case do.Announce(room=room, open=True):
                self._registration.room_at(room)
            case do.Announce(room=room, failed=failed):
                self._registration.room_over(room, failed=failed)
            case do.Spare(handle=handle, skip=skip):
                held = self.handles[handle]
                if isinstance(held, SendHandle):
                    held.skip = skip
            case do.Count(leg=key):
                self._legs[key].record(self.telemetry)
            case do.Forget(key=key):
                leg = self._legs.pop(key, None)
                if leg is not None:
                    self._forget_partner(leg.partner.hello.incarnation)
            case _:
                raise TypeError(f"no action of a sender: {action}")

    def _start(self, number: int, work: do.Work) -> None:
        keys = work.legs if isinstance(work, do.Packed) else (work.leg,)  # type: ignore[union-attr]
        legs = [self._legs[key] for key in keys]
        seconds = self.options.waiting_s + self.options.transfer_s
        self.jobs.start(number, [body_of(work, self._writes, legs)], keys, lanes=lanes_of(work, legs), seconds=seconds)

    def _began(self, leg: LegWork) -> None:
        self.post(on.Began(time.monotonic(), leg.key))

    def _faltered(self, leg: LegWork, failure: Failure, again: bool) -> None:
        self.post(on.Faltered(time.monotonic(), leg.key, failure, again))

    def _cut(self, peer: on.Peer, ask: say.Ask, sent: object) -> Cut | Failure:
        return answered("prefill", partial(self._cut_up, ask, sent))

    def _cut_up(self, ask: say.Ask, sent: object) -> Cut | Failure:
        leg = self._legs[(ask.room, ask.attempt)]
        assert isinstance(sent, Sent)
        left_out = leg.take(sent)
        if left_out:
            return Failure("PD4020", f"room {ask.room}: {left_out}", "prefill")
        fault = leg.fault or sent_fault(self._held, leg.part, ask.room, leg.here, leg.there, whole=sent.last)
        return fault or leg.cut(self.me.fabric.observed_transport(), copies=self.me.copier.can_copy, last=sent.last)

    def _unregistered(self) -> Failure | None:
        """Why decode is not told of this rank at all."""
        fault = self._registration.fault
        return Failure(fault.code, fault.cause, "prefill") if fault is not None else None
