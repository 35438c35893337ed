"""The registry's table: a rank is whoever came first and lives, a route names every rank or what is missing."""

from collections.abc import Hashable

import pytest

from pdctl_transfer.errors import FabricError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.session import Rank, Registry
from pdctl_transfer.session.machine import table_events as events
from pdctl_transfer.session.machine.rooms import MAX_ROOMS
from pdctl_transfer.session.machine.table import AWAY_S, MAX_CLAIMS, TICK_S, TTL_S, Table
from pdctl_transfer.session.machine.table_events import CloseLink
from pdctl_transfer.session.wire.messages import Again, Beat, Message, Register, Route, Standing
from tests.unit.transfer_session.world import manifest

FIRST = Rank(0, 0)


class Desk:
    """A table, a clock, and what was said over each connection."""

    def __init__(self, made: Manifest | None = None) -> None:
        self.table = Table()
        self.now = 100.0
        self.manifest = encode_manifest(made or manifest("prefill", 1))
        self.said: dict[Hashable, list[Message]] = {}
        self.closed: dict[Hashable, str] = {}
        self.living: set[Hashable] = set()

    def does(self, event: events.Event | events.TimePassed) -> None:
        for action in self.table.step(event):
            if isinstance(action, CloseLink):
                self.closed[action.owner] = action.cause
                self.living.discard(action.owner)
            else:
                self.said.setdefault(action.owner, []).append(action.message)

    def register(self, owner: str, incarnation: str, rank: Rank = FIRST, data: bytes | None = None) -> None:
        self.living.add(owner)
        record = Register(rank, "host", 1, incarnation, data or self.manifest)
        self.does(events.Registered(self.now, owner, record))

    def wait(self, seconds: float, *beating: str) -> None:
        """Time passes in ticks; who beats does so in each of them."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + TICK_S)
            for owner in beating:
                self.does(events.Beaten(self.now, owner))
            self.does(events.TimePassed(self.now))

    def opens(self, owner: str, room: int) -> None:
        self.does(events.RoomOpened(self.now, owner, room))

    def closes(self, owner: str, room: int) -> None:
        self.does(events.RoomClosed(self.now, owner, room))

    def gone(self, owner: str) -> None:
        self.does(events.Gone(self.now, owner))

    def route(self, room: int = 1) -> Route:
        self.does(events.LookedUp(self.now, "decode", 9, room))
        route = self.said["decode"][-1]
        assert isinstance(route, Route)
        return route

    def found(self) -> list[str]:
        return [served.incarnation for served in self.table.ranks()]

    def standing(self, owner: str) -> str:
        """The code that this connection was last told."""
        return next(m.code for m in reversed(self.said[owner]) if isinstance(m, Standing))


# Who is found.


def test_a_rank_that_registers_twice_is_one_rank() -> None:
    desk = Desk(manifest("prefill", 2))
    for _ in range(2):
        desk.register("a", "one")
    assert desk.found() == ["one"]
    assert "pp0/tp1" in desk.route().missing


def test_who_lives_is_not_displaced_and_the_later_one_is_told() -> None:
    desk = Desk()
    desk.register("a", "first")
    desk.register("b", "second")
    assert desk.found() == ["first"]
    assert (desk.standing("a"), desk.standing("b")) == ("", "PD4026")
    desk.wait(5 * TTL_S, "a", "b")
    assert desk.found() == ["first"]


@pytest.mark.parametrize("how", ["left", "gone", "silent"])
def test_the_next_in_line_takes_the_place_once_the_first_has_left(how: str) -> None:
    desk = Desk()
    for owner, incarnation in (("a", "first"), ("b", "second"), ("c", "third")):
        desk.register(owner, incarnation)
    if how == "left":
        desk.does(events.Left(desk.now, "a"))
    elif how == "gone":
        desk.gone("a")
    else:
        desk.wait(TTL_S + TICK_S, "b", "c")
        assert "heartbeat" in desk.closed["a"]
    assert desk.found() == ["second"]
    assert (desk.standing("b"), desk.standing("c")) == ("", "PD4026")


def test_whoever_was_kept_aside_and_left_leaves_nothing() -> None:
    desk = Desk()
    desk.register("a", "first")
    desk.register("b", "second")
    desk.does(events.Left(desk.now, "b"))
    assert desk.found() == ["first"]
    desk.does(events.Left(desk.now, "a"))
    assert desk.route().missing == "no prefill rank has registered"


def test_a_restarted_rank_replaces_its_former_self_at_once() -> None:
    desk = Desk()
    desk.register("a", "before")
    desk.gone("a")
    assert desk.found() == []
    desk.register("b", "after")
    assert desk.found() == ["after"]
    assert desk.standing("b") == ""


def test_who_lost_its_connection_has_its_place_again_when_it_comes_back() -> None:
    """Before that, whoever came later stands in: no lookup goes to nobody."""
    desk = Desk()
    desk.register("a", "first")
    desk.register("b", "second")
    desk.gone("a")
    assert desk.found() == ["second"]
    desk.register("c", "first")
    assert desk.found() == ["first"]
    assert (desk.standing("c"), desk.standing("b")) == ("", "PD4026")


def test_a_turn_is_kept_for_a_while_only() -> None:
    desk = Desk()
    desk.register("a", "first")
    desk.register("b", "second")
    desk.gone("a")
    desk.wait(AWAY_S + TICK_S, "b")
    desk.register("c", "first")
    assert desk.found() == ["second"]


def test_a_frozen_process_that_thaws_late_takes_nothing_away() -> None:
    """Neither when it comes back nor when it closes."""
    desk = Desk()
    desk.register("a", "old")
    desk.wait(TTL_S + TICK_S)
    assert "a" in desk.closed
    desk.register("b", "new")
    desk.register("c", "old")
    assert desk.found() == ["new"]
    assert desk.standing("c") == "PD4026"
    desk.does(events.Left(desk.now, "c"))
    assert desk.found() == ["new"]


def test_a_process_that_came_back_before_its_old_connection_ended_is_one() -> None:
    """The old one ends, and takes nothing with it."""
    desk = Desk()
    desk.register("a", "one")
    desk.register("b", "one")
    assert "another connection" in desk.closed["a"]
    desk.gone("a")
    assert desk.found() == ["one"]
    desk.wait(3 * TTL_S, "b")
    assert desk.found() == ["one"]


def test_a_beat_of_a_rank_that_is_not_known_is_answered_by_a_question() -> None:
    desk = Desk()
    desk.register("a", "one")
    for owner, incarnation, answer in (("a", "one", Beat()), ("a", "two", Again()), ("b", "one", Again())):
        desk.does(events.Beaten(desk.now, owner, incarnation))
        assert desk.said[owner][-1] == answer


def test_a_decode_rank_that_beats_is_answered_and_one_that_does_not_is_let_go() -> None:
    desk = Desk()
    desk.does(events.Beaten(desk.now, "d"))
    assert desk.said["d"] == [Beat()]
    desk.wait(2 * TTL_S)
    assert "d" in desk.closed


def test_a_registry_that_was_held_up_itself_blames_no_rank() -> None:
    desk = Desk()
    desk.register("a", "one")
    desk.wait(2 * TICK_S, "a")
    desk.now += 10 * TTL_S
    desk.does(events.TimePassed(desk.now))
    assert desk.found() == ["one"]
    desk.wait(TTL_S + TICK_S)
    assert desk.found() == []


def test_a_connection_speaks_for_one_process() -> None:
    desk = Desk(manifest("prefill", 2))
    for incarnation, rank in (("one", Rank(0, 0)), ("two", Rank(0, 0)), ("two", Rank(0, 1))):
        desk.register("a", incarnation, rank)
        assert [(served.incarnation, served.rank) for served in desk.table.ranks()] == [(incarnation, rank)]


def test_too_many_claims_of_one_rank_are_refused_and_not_kept() -> None:
    desk = Desk()
    owners = [str(number) for number in range(MAX_CLAIMS + 1)]
    for owner in owners:
        desk.register(owner, owner)
    assert desk.standing(owners[-1]) == "PD4026"
    desk.does(events.Beaten(desk.now, owners[-1], owners[-1]))
    assert desk.said[owners[-1]][-1] == Again()
    desk.gone(owners[0])  # who is away gives way
    desk.register(owners[-1], owners[-1])
    for owner in owners[1:-1]:
        desk.does(events.Left(desk.now, owner))
    assert desk.found() == [owners[-1]]


def test_a_manifest_that_cannot_be_read_is_refused_with_its_code() -> None:
    desk = Desk()
    desk.register("a", "one", data=b"not a manifest")
    assert desk.standing("a") == "PD0021"
    assert desk.found() == []


# Routes and rooms.


def test_a_route_is_complete_or_says_what_is_missing() -> None:
    desk = Desk(manifest("prefill", 2, pp=2))
    for pp in range(2):
        for tp in range(2):
            assert desk.route().missing
            desk.register(f"{pp}{tp}", f"{pp}{tp}", Rank(pp, tp))
    assert (desk.route().missing, desk.route().serial, len(desk.route().ranks)) == ("", 9, 4)


def two_groups() -> Desk:
    desk = Desk(manifest("prefill", 1, dp=2))
    for dp in range(2):
        desk.register(f"dp{dp}", f"group {dp}", Rank(0, 0, dp))
    return desk


def group_of(desk: Desk, room: int) -> list[str]:
    return [served.incarnation for served in desk.route(room).ranks]


def test_a_room_lives_in_the_dp_group_that_opened_it() -> None:
    desk = two_groups()
    assert "room 5" in desk.route(5).missing
    desk.opens("dp1", 5)
    assert group_of(desk, 5) == ["group 1"]


def test_a_room_that_is_over_is_taken_back() -> None:
    """Its number belongs to whichever group opens it next."""
    desk = two_groups()
    desk.opens("dp0", 5)
    desk.closes("dp0", 5)
    assert "room 5" in desk.route(5).missing
    desk.opens("dp1", 5)
    assert group_of(desk, 5) == ["group 1"]


def test_the_group_that_opened_a_room_last_serves_it() -> None:
    desk = two_groups()
    desk.opens("dp0", 5)
    desk.opens("dp1", 5)
    assert group_of(desk, 5) == ["group 1"]
    desk.closes("dp1", 5)
    assert group_of(desk, 5) == ["group 0"]


def test_a_room_stays_while_one_rank_of_its_group_has_it_open() -> None:
    desk = Desk(manifest("prefill", 2, dp=2))
    for dp in range(2):
        for tp in range(2):
            desk.register(f"{dp}{tp}", f"{dp}{tp}", Rank(0, tp, dp))
    desk.opens("10", 5)
    desk.opens("11", 5)
    desk.closes("10", 5)
    assert group_of(desk, 5) == ["10", "11"]
    desk.closes("11", 5)
    assert "room 5" in desk.route(5).missing


def test_rooms_go_with_their_connection_and_come_back_with_the_next() -> None:
    desk = two_groups()
    desk.opens("dp0", 5)
    desk.gone("dp0")
    assert desk.route(5).missing
    desk.register("again", "group 0", Rank(0, 0, 0))
    assert "room 5" in desk.route(5).missing
    desk.opens("again", 5)
    assert group_of(desk, 5) == ["group 0"]


def test_rooms_of_who_is_kept_aside_do_not_count() -> None:
    desk = two_groups()
    desk.opens("dp1", 5)
    desk.register("other", "stray", Rank(0, 0, 0))
    desk.opens("other", 5)
    assert group_of(desk, 5) == ["group 1"]


def test_of_too_many_rooms_the_oldest_is_forgotten() -> None:
    desk = two_groups()
    for room in range(MAX_ROOMS + 1):
        desk.opens("dp0", room)
    assert "room 0" in desk.route(0).missing
    assert group_of(desk, MAX_ROOMS) == ["group 0"]
    desk.gone("dp0")
    assert "dp0" not in desk.closed


def test_ranks_of_two_layouts_are_not_mixed() -> None:
    desk = Desk(manifest("prefill", 2))
    desk.register("a", "a", Rank(0, 0))
    desk.register("b", "b", Rank(0, 1), encode_manifest(manifest("prefill", 2, layers=4)))
    assert "different manifests" in desk.route().missing


@pytest.mark.code("PD4015")
def test_a_taken_port_is_named() -> None:
    registry = Registry()
    try:
        with pytest.raises(FabricError, match=str(registry.port)) as caught:
            Registry(port=registry.port)
        assert caught.value.code == "PD4015"
    finally:
        registry.close()
