"""Both machines without a driver: a model of a wire, of workers and of memory that can do whatever real ones can.

Two prefill and two decode ranks, each of which talks to both of the other side. Nothing here waits or sleeps: time,
messages, jobs and accidents are moves that a test makes.
"""

import itertools
from collections import defaultdict, deque
from typing import Any

import numpy as np

from pdctl_transfer.plan import RankId
from pdctl_transfer.region import Region
from pdctl_transfer.session import checks
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.leg import Cut
from pdctl_transfer.session.machine.receiver import Receiver
from pdctl_transfer.session.machine.sender import Sender
from pdctl_transfer.session.machine.working import TRIES
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say
from tests.unit.transfer_session.world import manifest

OPTIONS = Options(bootstrap_s=60, waiting_s=300, transfer_s=60, regain_s=3)
RANKS = (RankId(0, 0), RankId(0, 1))
SLOTS = 4
SCRATCH = 4
REGISTRY = ("registry", 1)
LAYOUT = manifest("decode", 1)
KINDS = [component.kind for component in LAYOUT.stages[0].components]
MEMORY = tuple(Region(0, 4, entry.item_len) for component in LAYOUT.stages[0].components for entry in component.entries)


class Handle:
    """What an engine sees of a room on one rank."""

    def __init__(self, rank: "Rank", room: int, attempt: str = "") -> None:
        self.rank, self.room, self.attempt = rank, room, attempt
        self.use = rank.world.uses[room]
        self.ends: list[Failure | None] = []
        self.released = 0
        self.sent = 0

    @property
    def code(self) -> str:
        """How it ended: empty where it has not, or a failure's code."""
        if not self.ends:
            return ""
        return self.ends[0].code if self.ends[0] is not None else "confirmed"


class Job:
    """Work that a machine started. `late`: writes that go on after the job has ended, by leg."""

    def __init__(self, rank: "Rank", number: int, work: do.Work) -> None:
        self.rank, self.number, self.work = rank, number, work
        self.begun = self.abandoned = False
        self.scratch: int | None = None

    def __repr__(self) -> str:
        return f"{self.rank}#{self.number} {self.work}"

    @property
    def legs(self) -> tuple[on.Key, ...]:
        """The legs that it serves."""
        return self.work.legs if isinstance(self.work, do.Packed) else (self.work.leg,)  # type: ignore[union-attr]

    @property
    def writes(self) -> bool:
        """Whether it moves bytes to the other side."""
        return isinstance(self.work, do.Straight | do.Packed | do.Staged)


class Rank:
    """A process with one machine."""

    def __init__(self, world: "Model", side: str, rank: RankId, serial: int) -> None:
        self.world, self.side, self.rank = world, side, rank
        self.name = f"{side}{rank.tp}.{serial}"
        self.machine: Any = (
            Sender(OPTIONS, self.cut) if side == "prefill" else Receiver(OPTIONS, SLOTS, self.chunks, lambda at: None)
        )
        self.handles: dict[int, Handle] = {}
        self.timers: dict[on.Timer, float] = {}
        self.jobs: dict[int, Job] = {}
        self.late: dict[on.Key, list[do.Work]] = defaultdict(list)
        """Writes of legs that may still land although their jobs have ended."""
        self.free = list(range(SLOTS if side == "decode" else SCRATCH))
        self.wishes: deque[do.Borrow] = deque()
        self.lent: dict[int, do.Borrow] = {}
        self.finding: dict[on.Key, do.Find] = {}
        self.alive = self.shown = True
        self.closing = False

    def __repr__(self) -> str:
        return self.name

    def cut(self, peer: str, ask: say.Ask, sent: object) -> Cut | Failure:
        return self.world.shapes[ask.room][sent]  # type: ignore[index]

    def chunks(self, key: on.Key, rank: RankId, more: say.More | None) -> int:
        return self.world.shapes[key[0]][more.number if more else 0].chunks

    def take(self, event: Any) -> None:
        """Tell the machine, and do what it wants."""
        if not self.alive:
            return
        for action in self.machine.handle(event):
            getattr(self, f"_{type(action).__name__.lower()}")(action)

    def _sendmessage(self, a: do.SendMessage) -> None:
        self.world.send(self, a.peer, a.message)

    def _askfor(self, a: do.AskFor) -> None:
        self.world.links[(a.peer, self.name)].declines.pop(a.key[0], None)
        self.world.send(self, a.peer, say.Ask(*a.key, {}, {}, "none"))

    def _find(self, a: do.Find) -> None:
        self.finding[a.key] = a

    def _unfind(self, a: do.Unfind) -> None:
        self.finding.pop(a.key, None)

    def _want(self, a: do.Want) -> None:
        pass

    def _announce(self, a: do.Announce) -> None:
        pass

    def _startjob(self, a: do.StartJob) -> None:
        assert a.job not in self.jobs
        self.jobs[a.job] = Job(self, a.job, a.work)

    def _abandonjob(self, a: do.AbandonJob) -> None:
        if a.job in self.jobs:
            self.jobs[a.job].abandoned = True

    def _borrow(self, a: do.Borrow) -> None:
        self.wishes.append(a)

    def _unborrow(self, a: do.Unborrow) -> None:
        self.wishes = deque(w for w in self.wishes if (w.key, w.rank) != (a.key, a.rank))

    def _giveback(self, a: do.GiveBack) -> None:
        for slot in a.slots:
            assert slot not in self.free, f"{self.name}: slot {slot} given back twice"
            self.free.append(slot)
            self.lent.pop(slot, None)

    def _stuck(self, a: do.Stuck) -> None:
        assert not set(a.slots) & set(self.free)

    def _arm(self, a: do.Arm) -> None:
        self.timers[a.timer] = a.at

    def _cancel(self, a: do.Cancel) -> None:
        self.timers.pop(a.timer, None)

    def _advance(self, a: do.Advance) -> None:
        assert not self.handles[a.handle].ends

    def _deliver(self, a: do.Deliver) -> None:
        pass

    def _spare(self, a: do.Spare) -> None:
        pass

    def _end(self, a: do.End) -> None:
        self.handles[a.handle].ends.append(a.failure)

    def _release(self, a: do.Release) -> None:
        self.handles[a.handle].released += 1

    def _count(self, a: do.Count) -> None:
        pass

    def _forget(self, a: do.Forget) -> None:
        pass


class Link:
    """A connection between a prefill and a decode rank, and what is on its way over it."""

    def __init__(self) -> None:
        self.up = False
        self.fresh = True
        """It never stood; only then can the pair be refused."""
        self.refused: Failure | None = None
        self.declines: dict[int, say.Decline] = {}
        """What is said on each new connection, until the room is asked for after all."""
        self.queues: dict[str, deque[Any]] = {"prefill": deque(), "decode": deque()}
        """Messages on their way to that side."""


class Model:
    """All of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.serials = itertools.count(1)
        self.handle_numbers = itertools.count(1)
        self.attempts = itertools.count(1)
        self.shapes: dict[int, tuple[Cut, ...]] = {}
        self.faults: dict[on.Key, int] = defaultdict(int)
        """How often a leg's writes failed."""
        self.forgotten: set[tuple[int, int]] = set()
        self.uses: dict[int, int] = defaultdict(int)
        """How often a room number was used before."""
        self.causes: dict[int, int] = defaultdict(int)
        """Things that happened to a room after which its end is not a success, or its two sides may differ."""
        self.ranks: dict[str, Rank] = {}
        self.past: list[Rank] = []
        self.links: dict[tuple[str, str], Link] = {}
        for side in ("prefill", "decode"):
            for rank in RANKS:
                self.start(side, rank)

    # Moves.

    def start(self, side: str, rank: RankId) -> Rank:
        made = Rank(self, side, rank, next(self.serials))
        self.ranks[made.name] = made
        for other in self.side("decode" if side == "prefill" else "prefill"):
            self.links[self.pair(made, other)] = Link()
        return made

    def open(
        self, shape: Cut, ranks: tuple[Rank, ...], number: int, *, forgotten: bool = False, parts: int = 1
    ) -> None:
        """`forgotten`: the engines of both sides leave a kind of state out. `parts`: installments; all but the first
        come later (`send`)."""
        every = [shape] * parts if parts == 1 else [shape._replace(summed_apart=False, stops={})] * (parts - 1)
        self.shapes[number] = (*every, *([shape._replace(summed_apart=True, stops={})] if parts > 1 else []))
        self.uses[number] += 1
        if forgotten:
            self.forgotten.add((number, self.uses[number]))
        self.causes[number] = int(any(link.refused is not None for link in self.links.values()))
        for rank in ranks:
            attempt = f"a{next(self.attempts)}" if rank.side == "decode" else ""
            handle = Handle(rank, number, attempt)
            serial = next(self.handle_numbers)
            rank.handles[serial] = handle
            fault = self.fault(number) if rank.side == "decode" else None
            self.causes[number] += fault is not None
            rank.take(on.Opened(self.now, serial, number, fault, attempt, REGISTRY))
            if rank.side == "prefill":
                self.send_next(rank, serial)

    def unsent(self, rank: Rank) -> list[int]:
        """Open handles of a prefill rank whose engine has more to send."""
        return [n for n, h in rank.handles.items() if not h.ends and h.sent < len(self.shapes[h.room])]

    def send_next(self, rank: Rank, serial: int) -> None:
        """The engine sends the next installment."""
        handle = rank.handles[serial]
        n, handle.sent = handle.sent, handle.sent + 1
        last = handle.sent == len(self.shapes[handle.room])
        rank.take(on.Sent(self.now, serial, n, b"m" if last else b"", last))

    def abort(self, rank: Rank, serial: int) -> None:
        side: Any = rank.side
        self.causes[rank.handles[serial].room] += not rank.handles[serial].ends
        rank.take(on.Aborted(self.now, serial, Failure("PD4033", "aborted", side)))

    def route(self, rank: Rank, key: on.Key) -> None:
        rank.finding.pop(key)
        targets = tuple(on.Target(p.rank, p.name, (p.name, 1)) for p in self.side("prefill"))
        complete = len(targets) == len(RANKS)
        rank.take(on.Routed(self.now, key, targets if complete else (), "" if complete else "ranks missing"))

    def lend(self, rank: Rank) -> None:
        wish = rank.wishes.popleft()
        slot = rank.free.pop()
        rank.lent[slot] = wish
        rank.take(on.Lent(self.now, wish.key, wish.rank, wish.number, slot, 1000 + slot))

    def connect(self, key: tuple[str, str]) -> None:
        link, (p, d) = self.links[key], self.both(key)
        if link.refused is not None:
            return
        link.up, link.fresh = True, False
        link.queues["prefill"].extend(link.declines.values())
        for rank, other in ((p, d), (d, p)):
            rank.take(on.LinkReady(self.now, other.name))

    def cut(self, key: tuple[str, str]) -> None:
        link = self.links[key]
        link.up = False
        for queue in link.queues.values():
            queue.clear()
        for rank, other in self.ways(key):
            rank.take(on.LinkBroken(self.now, other.name, self.failure("PD4004", other)))

    def refuse(self, key: tuple[str, str]) -> None:
        """The handshake says no: decode declines over the same connection, then it ends."""
        link = self.links[key]
        link.refused = Failure("PD1001", "page sizes", "prefill")
        p, d = self.both(key)
        d.take(on.LinkRefused(self.now, p.name, link.refused))
        p.take(on.LinkRefused(self.now, d.name, link.refused))

    def deliver(self, key: tuple[str, str], to: str, at: int = 0) -> None:
        queue = self.links[key].queues[to]
        queue.rotate(-at)
        message = queue.popleft()
        queue.rotate(at)
        p, d = self.both(key)
        if to == "decode":
            d.take(on.Heard(self.now, p.name, message))
        elif isinstance(message, say.Ask):
            p.take(on.Asked(self.now, d.name, d.rank, 0, RANKS, message))
        else:
            p.take(on.Heard(self.now, d.name, message))

    def begin(self, job: Job) -> None:
        job.begun = True
        if isinstance(job.work, do.Straight | do.Packed | do.Staged | do.Sum):
            if job.scratch is None and isinstance(job.work, do.Packed | do.Staged) and job.rank.free:
                job.scratch = job.rank.free.pop()
            for leg in job.legs:
                job.rank.take(on.Began(self.now, leg))

    def finish(self, job: Job, how: str) -> None:
        """well, again (a failure worth another try), failed, late (the same, and something goes on), broke."""
        rank = job.rank
        del rank.jobs[job.number]
        held = (job.scratch,) if job.scratch is not None else ()
        if isinstance(job.work, do.Place | do.Check):
            if how == "broke":
                self.causes[job.work.key[0]] += 1
                rank.take(on.JobBroke(self.now, job.number, Failure("PD4042", "defect", "decode")))
            else:
                bad = how == "failed" and isinstance(job.work, do.Check)
                self.causes[job.work.key[0]] += bad
                rank.take(on.JobDone(self.now, job.number, fault="differs" if bad else ""))
            return
        late = how == "late" and job.writes
        if late:
            for leg in job.legs:
                rank.late[leg].append(job.work)
        elif held:
            rank.free.append(held[0])
            held = ()
        if how == "broke":
            for leg in job.legs:
                self.causes[leg[0]] += 1
            failure = Failure("PD4042", "defect", "prefill")
            rank.take(on.JobBroke(self.now, job.number, failure, not job.writes or not late, held))
            return
        if isinstance(job.work, do.Prove):
            ok = not rank.late[job.work.leg] or self.dead(job.work.leg)
            rank.take(on.JobDone(self.now, job.number, (on.Result(job.work.leg, ok),)))
            return
        ran = job.begun and not (job.abandoned and how == "well")
        failure = None if how == "well" else Failure("PD4011", "broken", "decode")
        if failure is not None:
            for leg in job.legs:
                self.faults[leg] += 1  # what is tried again must end well, unless it fails each time
                self.causes[leg[0]] += how == "failed" or self.faults[leg] == TRIES
            if isinstance(job.work, do.Packed):  # one leg's is told before the others' writes have ended
                rank.take(on.Faltered(self.now, job.legs[0], failure, how != "failed"))
        results = []
        for n, leg in enumerate(job.legs):
            results.append(
                on.Result(leg, ran and failure is None, not late, failure, {}, held if n == 0 else (), how != "failed")
            )
        rank.take(on.JobDone(self.now, job.number, tuple(results)))

    def drain(self, rank: Rank) -> bool:
        """What the fabric had queued has landed, but for peers that do not answer: of that nothing is ever known."""
        landed = [leg for leg in rank.late if not self.lost_for_good(leg)]
        for leg in landed:
            del rank.late[leg]
        return bool(landed)

    def kill(self, rank: Rank, *, shown: bool) -> None:
        """`shown`: there is evidence that it has ended; else it might as well be out of reach."""
        rank.alive = False
        rank.shown = shown
        del self.ranks[rank.name]
        self.past.append(rank)
        for key in [key for key in self.links if rank.name in key]:
            (other,) = (self.ranks[name] for name in key if name != rank.name)
            del self.links[key]
            other.take(on.LinkBroken(self.now, rank.name, self.failure("PD4004", rank)))
            if rank.side == "prefill" and shown:  # decode looks, and finds that the process has ended
                other.take(on.PeerGone(self.now, rank.name, self.failure("PD4004", rank)))
        for other in self.ranks.values():
            for handle in other.handles.values():
                self.causes[handle.room] += 2

    def silent(self, rank: Rank, other: Rank) -> None:
        for handle in rank.handles.values():
            self.causes[handle.room] += not handle.ends
        rank.take(on.LinkSilent(self.now, other.name, self.failure("PD4005", other)))

    def close(self, rank: Rank) -> None:
        rank.closing = True
        for handle in rank.handles.values():
            self.causes[handle.room] += not handle.ends
        for key in rank.finding:  # nobody is known who could be told
            self.causes[key[0]] += 1
        rank.take(on.Closing(self.now, self.failure("PD4034", rank)))

    def pass_time(self, seconds: float, *, calm: bool = False) -> None:
        """What runs out of time while things go wrong may end apart; in calm, nothing does but what nobody ends."""
        self.now += seconds
        for rank in list(self.ranks.values()):
            for timer, at in sorted(rank.timers.items(), key=lambda entry: entry[1]):
                if at <= self.now and rank.timers.get(timer) == at:
                    del rank.timers[timer]
                    if timer[0] in {"room", "peer"} and not calm:
                        for handle in rank.handles.values():
                            self.causes[handle.room] += not handle.ends
                    rank.take(on.TimerFired(self.now, timer))

    def calm(self) -> None:
        """Everything gets well: links stand, messages arrive in order, jobs end, time passes. Until nothing moves."""
        chunks = sum(cut.chunks for cuts in self.shapes.values() for cut in cuts)
        for _ in range(400 + 4 * chunks):  # a few slots serve them all
            moved = self.step_well()
            if not moved:
                if not any(self.waiting(rank) for rank in self.ranks.values()):
                    return
                soonest = min(at for rank in self.ranks.values() for at in self.waiting(rank))
                self.pass_time(max(0.0, soonest - self.now), calm=True)
        raise AssertionError("it never comes to rest")

    def step_well(self) -> bool:
        """One round of all that can happen without an accident."""
        for rank in self.side("prefill"):
            for serial in self.unsent(rank):
                self.send_next(rank, serial)
        drained = [self.drain(rank) for rank in self.ranks.values()]
        return any([*drained, self.link_well(), self.work_well(), self.talk_well()])

    def waiting(self, rank: Rank) -> list[float]:
        """When its timers fire, but for those that look again and again for what is never known."""
        for_ever = {key for key, leg in rank.machine.legs.items() if leg.unproven} if rank.side == "prefill" else set()
        gone = {p.name for p in self.past if not p.shown}
        if rank.side == "decode":
            for key, request in rank.machine.requests.items():
                unsettled = {s.peer for s in [*request.sources.values(), *request.leaving] if not s.settled}
                if unsettled and unsettled <= gone:
                    for_ever.add(key)
        return [
            at for timer, at in rank.timers.items() if not (timer[0] in {"prove", "remind"} and timer[1] in for_ever)
        ]

    def in_doubt(self) -> list[tuple[Rank, Rank]]:
        """Prefill and decode ranks between which something may be under way though its job has ended."""
        found = []
        for p in self.side("prefill"):
            for leg in p.late:
                found += [(p, d) for d in self.side("decode") if any(h.attempt == leg[1] for h in d.handles.values())]
        return found

    def link_well(self) -> bool:
        """Connections are made, or refused again; the registry answers; slots are lent."""
        moved = False
        for key, link in list(self.links.items()):
            if not link.up and link.refused is None:
                self.connect(key)
                moved = True
            p, d = self.both(key)
            if link.refused is not None and d.machine.needs(p.name):  # tried again, and refused again
                d.take(on.LinkRefused(self.now, p.name, link.refused))
                moved = True
        for rank in list(self.ranks.values()):
            for key in list(rank.finding):
                if len(self.side("prefill")) == len(RANKS):
                    self.route(rank, key)
                    moved = True
            while rank.side == "decode" and rank.wishes and rank.free:
                self.lend(rank)
                moved = True
        return moved

    def work_well(self) -> bool:
        """Jobs are done; proofs fail as long as something is under way."""
        jobs = [job for rank in self.ranks.values() for job in rank.jobs.values()]
        for job in jobs:
            self.begin(job)
            self.finish(job, "well")
        return bool(jobs)

    def talk_well(self) -> bool:
        """Messages that are on their way arrive in order."""
        moved = False
        for key, link in list(self.links.items()):
            for to in ("prefill", "decode"):
                for _ in range(len(link.queues[to])):
                    moved = True
                    self.deliver(key, to)
        return moved

    # Helpers.

    def fault(self, number: int) -> Failure | None:
        """What decode finds in its ids, by the product's own check."""
        ids = {
            kind: np.array([1])
            for kind in KINDS
            if kind != "mamba" or (number, self.uses[number]) not in self.forgotten
        }
        wrong = checks.Held(LAYOUT, 0, MEMORY).fault(ids, unique=True)
        return Failure("PD4021", wrong, "decode") if wrong else None

    def side(self, side: str) -> list[Rank]:
        return [rank for rank in self.ranks.values() if rank.side == side]

    def pair(self, one: Rank, other: Rank) -> tuple[str, str]:
        p, d = (one, other) if one.side == "prefill" else (other, one)
        return p.name, d.name

    def both(self, key: tuple[str, str]) -> tuple[Rank, Rank]:
        return self.ranks[key[0]], self.ranks[key[1]]

    def ways(self, key: tuple[str, str]) -> list[tuple[Rank, Rank]]:
        p, d = self.both(key)
        return [(p, d), (d, p)]

    def dead(self, leg: on.Key) -> bool:
        """Whether the peer that this leg writes to is shown to have ended: nothing can land there any more."""
        return any(h.attempt == leg[1] for d in self.past if d.shown for h in d.handles.values())

    def lost_for_good(self, leg: on.Key) -> bool:
        """Whether its peer is gone without a trace."""
        return any(h.attempt == leg[1] for d in self.past if not d.shown for h in d.handles.values())

    def send(self, rank: Rank, peer: str, message: Any) -> None:
        other = self.ranks.get(peer)
        if other is None:
            return
        link = self.links[self.pair(rank, other)]
        if isinstance(message, say.Decline):
            link.declines[message.room] = message
        if link.up or (link.refused is not None and isinstance(message, say.Decline)):
            link.queues[other.side].append(message)

    @staticmethod
    def failure(code: str, rank: Rank) -> Failure:
        side: Any = rank.side
        return Failure(code, f"{rank.name}", side)
