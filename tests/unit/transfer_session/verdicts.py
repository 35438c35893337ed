"""What must hold of both machines: at every moment, and once everything has come to rest."""

from collections import defaultdict
from collections.abc import Iterator

from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from tests.unit.transfer_session.machines import SCRATCH, SLOTS, Handle, Model, Rank


def violations(model: Model) -> Iterator[str]:
    """Everything that is wrong now."""
    for rank in [*model.ranks.values(), *model.past]:
        for handle in rank.handles.values():
            if handle.code == "confirmed" and (handle.room, handle.use) in model.forgotten:
                yield f"{rank.name} room {handle.room}: confirmed, though a kind of its state was never moved"
            if len(handle.ends) > 1:
                yield f"{rank.name} room {handle.room}: ended {len(handle.ends)} times"
            if handle.released > 1 or (handle.released and not handle.ends):
                yield f"{rank.name} room {handle.room}: released {handle.released} times, ended {len(handle.ends)}"
    for p in model.side("prefill"):
        for key, slot in under_way(p):
            for d in model.side("decode"):
                for handle in d.handles.values():
                    if (handle.room, handle.attempt) == key and handle.released:
                        yield f"{p.name} may still write {key}, whose pages {d.name} has given away"
                if slot is not None and any(handle.attempt == key[1] for handle in d.handles.values()):
                    wish = d.lent.get(slot - 1000)
                    if wish is None or wish.key != key:
                        yield f"{p.name} may still write slot {slot - 1000} for {key}, lent elsewhere by {d.name}"
        for job in p.jobs.values():
            if job.writes and job.begun:
                for leg in job.legs:
                    for handle in p.handles.values():
                        if handle.room == leg[0] and handle.released and handle.code != "confirmed":
                            # a room number may be in use again
                            live = any(h.room == leg[0] and not h.released for h in p.handles.values())
                            if not live:
                                yield f"{p.name} released room {leg[0]} while a job reads it"


def under_way(p: Rank) -> Iterator[tuple[on.Key, int | None]]:
    """Attempts that may still be written by a rank, and the slot address where it is a staged chunk."""
    for job in p.jobs.values():
        if job.writes and job.begun:
            for leg in job.legs:
                yield leg, job.work.base if isinstance(job.work, do.Staged) else None
    for leg, works in p.late.items():
        for work in works:
            yield leg, work.base if isinstance(work, do.Staged) else None


def at_rest(model: Model) -> Iterator[str]:
    """What is wrong once it has come to rest."""
    for rank in model.ranks.values():
        for handle in rank.handles.values():
            if not handle.ends:
                yield f"{rank.name} room {handle.room}: never ended"
            elif not handle.released and not unknowable(model, handle):
                yield f"{rank.name} room {handle.room}: its pages were lost ({handle.code})"
        kept = any(unknowable(model, handle) for handle in rank.handles.values() if not handle.released)
        if len(rank.free) != (SLOTS if rank.side == "decode" else SCRATCH) and not (kept and rank.side == "decode"):
            yield f"{rank.name}: slots lost, {len(rank.free)} left"
        if rank.jobs:
            yield f"{rank.name}: jobs without an answer"
        if rank.side == "prefill":
            left = [key for key, leg in rank.machine.legs.items() if not leg.unproven]
            if left or rank.machine.rooms:
                yield f"{rank.name}: legs {left}, rooms {list(rank.machine.rooms)}"
        elif any(request.released for request in rank.machine.requests.values()):
            yield f"{rank.name}: requests {list(rank.machine.requests)}"
    yield from unlike(model)


def unlike(model: Model) -> Iterator[str]:
    """Rooms that nothing or one thing happened to, and whose sides do not agree. Where a rank keeps slots for what
    is gone without a trace, others may have waited for them in vain."""
    if any(unknowable(model, handle) for d in model.side("decode") for handle in d.handles.values()):
        return
    codes: dict[int, set[str]] = defaultdict(set)
    for rank in [*model.ranks.values(), *model.past]:
        for handle in rank.handles.values():
            if handle.use == model.uses[handle.room]:
                codes[handle.room].add(handle.code)
    for room, found in codes.items():
        if model.causes[room] == 0 and found != {"confirmed"}:
            yield f"room {room}: nothing happened to it, and it ended {sorted(found)}"
        if model.causes[room] == 1 and len(found - {"confirmed"}) > 1:  # who confirmed could not know
            yield f"room {room}: ended {sorted(found)}"


def unknowable(model: Model, handle: Handle) -> bool:
    """Whether a prefill rank that may write into its pages is gone without a trace: they stay in quarantine."""
    if handle.rank.side == "prefill":
        return False
    gone = {rank.name for rank in model.past if not rank.shown}
    request = handle.rank.machine.requests.get((handle.room, handle.attempt))
    if request is None:
        return False
    return any(s.peer in gone and not s.settled for s in [*request.sources.values(), *request.leaving])
