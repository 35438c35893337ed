"""The registry's table under any order of starts, cuts, freezes, closes and restarts.

Whoever lives and beats is found within one beat of it, nobody who lives is displaced by a later one, and a room leads
to a group that has it open. Each fault that was planted is found by the same search.
"""

import itertools
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.session import Rank
from pdctl_transfer.session.machine import table_events as events
from pdctl_transfer.session.machine.table import AWAY_S, TICK_S, TTL_S, Table
from pdctl_transfer.session.machine.table_events import CloseLink
from pdctl_transfer.session.wire.messages import Again, Register, Route, Standing
from tests.unit.transfer_session.world import manifest

MANIFEST = encode_manifest(manifest("prefill", 1, dp=2))
ROOMS = (1, 2, 3)
MOST = 6
"""Processes that live at the same time."""
CLAIMS = 2
"""Of one rank; more are refused, and ask again with every beat."""


class Process:
    """A prefill rank, as its client behaves (drive/client.py)."""

    def __init__(self, number: int, dp: int) -> None:
        self.rank = Rank(0, 0, dp)
        self.incarnation = f"process {number}"
        self.link: int | None = None
        self.alive = True
        self.frozen = False
        self.rooms: set[int] = set()
        self.standing: str | None = None

    @property
    def serves(self) -> bool:
        return self.alive and not self.frozen and self.link is not None


class Fleet(RuleBasedStateMachine):
    """Processes of two DP groups and their registry. `queue` holds what was sent to it and has not arrived."""

    make: type[Table] = Table

    def __init__(self) -> None:
        super().__init__()
        self.table = self.make(CLAIMS)
        self.now = 0.0
        self.owners = itertools.count(1)
        self.processes: list[Process] = []
        self.by_link: dict[int, Process] = {}
        self.unseen: set[int] = set()
        """Connections that have ended, of which the registry does not know."""
        self.turn: dict[Rank, list[Process]] = {Rank(0, 0, dp): [] for dp in range(2)}
        """Who came first, by what is promised: of each rank, who may not be displaced by those behind."""
        self.away: dict[Process, float] = {}
        self.heard: dict[int, float] = {}

    # The wire.

    def tell(self, event: Any) -> None:
        if isinstance(event, events.Event):
            self.heard[event.owner] = event.now  # type: ignore[index]
        replies = deque(self.table.step(event))
        while replies:
            action = replies.popleft()
            process = self.by_link.get(action.owner)  # type: ignore[arg-type]
            if isinstance(action, CloseLink):
                self.closed(action, process)
            elif process is not None and process.link == action.owner:
                if isinstance(action.message, Standing):
                    process.standing = action.message.code  # a frozen one reads it later
                elif isinstance(action.message, Again) and process.serves:
                    self.greet(process)

    def closed(self, action: CloseLink, process: Process | None) -> None:
        """The registry ended a connection; a frozen process learns of it when it thaws."""
        self.unseen.discard(action.owner)  # type: ignore[arg-type]
        self.by_link.pop(action.owner, None)  # type: ignore[arg-type]
        if process is None:
            return
        if process.link not in (None, action.owner):  # an old one
            return
        process.link, process.standing = None, None
        if "heartbeat" in action.cause:
            self.lose_turn(process)

    def lose_turn(self, process: Process) -> None:
        self.away.pop(process, None)
        if process in self.turn[process.rank]:
            self.turn[process.rank].remove(process)

    def greet(self, process: Process) -> None:
        record = Register(process.rank, "host", 1, process.incarnation, MANIFEST)
        turn = self.turn[process.rank]
        if process not in turn and len(turn) >= CLAIMS:
            for other in [other for other in turn if other in self.away][:1]:
                self.lose_turn(other)
        if process not in turn and len(turn) < CLAIMS:
            turn.append(process)
        self.away.pop(process, None)
        self.tell(events.Registered(self.now, process.link, record))
        for room in sorted(process.rooms):
            self.tell(events.RoomOpened(self.now, process.link, room))

    def connect(self, process: Process) -> None:
        process.link = next(self.owners)
        self.by_link[process.link] = process
        self.greet(process)

    def beat(self) -> None:
        """One heartbeat of everybody who can; who has no connection makes one first."""
        for process in self.processes:
            if process.alive and not process.frozen:
                if process.link is None:
                    self.connect(process)
                self.tell(events.Beaten(self.now, process.link, process.incarnation))

    def lose_link(self, process: Process, noticed: bool) -> None:
        link, process.link, process.standing = process.link, None, None
        if link is None:
            return
        self.unseen.add(link)
        if noticed:
            self.notice(link)

    def notice(self, link: int) -> None:
        self.unseen.discard(link)
        process = self.by_link.pop(link)
        if process.link is None and link in self.heard and process in self.turn[process.rank]:
            self.away[process] = self.now
        self.tell(events.Gone(self.now, link))

    def pick(self, index: int, **kind: bool) -> Process | None:
        able = [p for p in self.processes if all(getattr(p, name) == value for name, value in kind.items())]
        return able[index % len(able)] if able else None

    # What happens.

    @initialize(dps=st.lists(st.integers(0, 1), min_size=1, max_size=4))
    def begin(self, dps: list[int]) -> None:
        for dp in dps:
            self.start(dp)

    @rule(dp=st.integers(0, 1))
    def start(self, dp: int) -> None:
        if sum(process.alive for process in self.processes) < MOST:
            self.processes.append(Process(len(self.processes), dp))
            self.connect(self.processes[-1])

    @rule(index=st.integers(0, 9), noticed=st.booleans())
    def cut(self, index: int, noticed: bool) -> None:
        process = self.pick(index, serves=True)
        if process is not None:
            self.lose_link(process, noticed)

    @rule()
    def see_an_old_end(self) -> None:
        if self.unseen:
            self.notice(min(self.unseen))

    @rule()
    def come_back(self) -> None:
        self.beat()

    @rule(index=st.integers(0, 9))
    def freeze(self, index: int) -> None:
        process = self.pick(index, alive=True, frozen=False)
        if process is not None:
            process.frozen = True

    @rule(index=st.integers(0, 9))
    def thaw(self, index: int) -> None:
        process = self.pick(index, alive=True, frozen=True)
        if process is not None:
            process.frozen = False

    @rule(index=st.integers(0, 9), noticed=st.booleans())
    def kill(self, index: int, noticed: bool) -> None:
        process = self.pick(index, alive=True)
        if process is not None:
            process.alive = False
            process.rooms.clear()
            self.lose_link(process, noticed)

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        process = self.pick(index, serves=True)
        if process is not None:
            process.alive = False
            process.rooms.clear()
            self.lose_turn(process)
            self.tell(events.Left(self.now, process.link))

    @rule(index=st.integers(0, 9), room=st.sampled_from(ROOMS))
    def open_room(self, index: int, room: int) -> None:
        process = self.pick(index, alive=True, frozen=False)
        if process is not None:
            process.rooms.add(room)
            if process.link is not None:
                self.tell(events.RoomOpened(self.now, process.link, room))

    @rule(index=st.integers(0, 9), room=st.sampled_from(ROOMS))
    def end_room(self, index: int, room: int) -> None:
        process = self.pick(index, alive=True, frozen=False)
        if process is not None and room in process.rooms:
            process.rooms.discard(room)
            if process.link is not None:
                self.tell(events.RoomClosed(self.now, process.link, room))

    @rule(ticks=st.integers(1, 8))
    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            self.beat()
            for process, since in list(self.away.items()):
                if self.now - since > AWAY_S:
                    self.lose_turn(process)
            self.tell(events.TimePassed(self.now))

    @rule(seconds=st.floats(1, 100))
    def hold_up_the_registry(self, seconds: float) -> None:
        """Its clock comes first, what was sent meanwhile after it; that is nobody's fault."""
        self.now += TICK_S + seconds
        away = [process for process, since in self.away.items() if self.now - since > AWAY_S]
        for process in away:
            self.lose_turn(process)
        late = {link: heard + seconds for link, heard in self.heard.items()}
        self.heard = {link: min(self.now, heard) for link, heard in late.items()}
        self.tell(events.TimePassed(self.now))

    @rule()
    def restart_the_registry(self) -> None:
        self.table = self.make(CLAIMS)
        self.by_link.clear()
        self.unseen.clear()
        self.away.clear()
        self.heard.clear()
        for waiting in self.turn.values():
            waiting.clear()
        for process in self.processes:
            process.link, process.standing = None, None

    # What holds.

    def found(self) -> dict[Rank, Process]:
        by_name = {process.incarnation: process for process in self.processes}
        return {served.rank: by_name[served.incarnation] for served in self.table.ranks()}

    def may_count(self, process: Process) -> bool:
        """It serves, or the registry cannot know yet that it does not."""
        links = [link for link, owner in self.by_link.items() if owner is process]
        return process.serves or any(self.now - self.heard[link] <= TTL_S + TICK_S for link in links)

    @invariant()
    def who_is_found_is_who_is_first_in_turn(self) -> None:
        """At any moment, whether or not anybody has beaten since."""
        for rank, process in self.found().items():
            before = self.turn[rank][: self.turn[rank].index(process)]
            assert not [other.incarnation for other in before if other.serves], f"displaced by {process.incarnation}"
            assert self.may_count(process), f"{process.incarnation} is long gone"

    @invariant()
    def who_lives_is_found_within_one_beat(self) -> None:
        self.beat()
        found = self.found()
        for process in self.processes:
            if process.serves:
                assert process.rank in found, f"nobody is found where {process.incarnation} lives"
                assert process.standing == ("" if found[process.rank] is process else "PD4026")

    @invariant()
    def a_room_leads_to_who_has_it_open(self) -> None:
        found = self.found()
        for room in ROOMS:
            self.tell(events.LookedUp(self.now, "decode", 1, room))  # type: ignore[arg-type]
            route = self.table.route(1, room)
            assert isinstance(route, Route)
            open_in = {rank.dp for rank, process in found.items() if room in process.rooms}
            lost = {p.rank.dp for p in found.values() if not p.alive}  # its rooms went with it, and nobody knows yet
            if open_in and len(found) == 2:
                assert not route.missing
            if not route.missing:
                assert route.ranks[0].rank.dp in open_in | lost


TestFleet = Fleet.TestCase
TestFleet.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class LastWriterWins(Table):
    """Whoever registers last is found."""

    def _register(self, owner: Any, link: Any, record: Any) -> Any:
        actions = super()._register(owner, link, record)
        claims = self._claims.get(record.rank, [])
        claims.sort(key=lambda claim: claim.served.incarnation != record.incarnation)
        return actions


class NobodyIsAsked(Table):
    """A beat is only a beat."""

    def step(self, event: Any) -> Any:
        if isinstance(event, events.Beaten):
            event = events.Beaten(event.now, event.owner)
        return super().step(event)


class NobodyFallsBack(Table):
    """Who leaves takes the rank along."""

    def _withdraw(self, claim: Any) -> Any:
        self._claims.pop(claim.rank, None)
        return []


class TheDeadStay(Table):
    """Silence ends nothing."""

    def _time_passed(self, now: float) -> Any:
        for link in self._links.values():
            link.heard = now
        return super()._time_passed(now)


class RoomsStay(Table):
    """A room that is over is not taken back."""

    def step(self, event: Any) -> Any:
        return [] if isinstance(event, events.RoomClosed) else super().step(event)


class NoTurnIsKept(Table):
    """A broken connection costs the place."""

    def _forget(self, owner: Any, now: float, *, stays: bool) -> Any:
        return super()._forget(owner, now, stays=False)


@pytest.mark.parametrize(
    "fault", [LastWriterWins, NobodyIsAsked, NobodyFallsBack, TheDeadStay, RoomsStay, NoTurnIsKept]
)
def test_a_planted_fault_is_found(fault: type[Table]) -> None:
    planted = type("Planted", (Fleet,), {"make": fault})
    budget = settings(
        max_examples=300,
        stateful_step_count=40,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(planted, settings=budget)
