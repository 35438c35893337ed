"""What a prefill rank knows of its rooms and legs, and remembers of those that ended."""

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.leg import Leg
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.sending import Room
from pdctl_transfer.session.wire.messages import Ask


class Book:
    """Rooms that have not ended, legs that are not settled. Loop thread only."""

    def __init__(self, remember_s: float) -> None:
        self.rooms: dict[int, Room] = {}
        self.legs: dict[tuple[int, str], Leg] = {}
        self.ended = Recent(remember_s)
        """Rooms that failed here, for decode ranks that ask too late."""
        self.given_up = Recent(remember_s)
        """Rooms that decode gave up before they were opened here."""

    def rooms_of(self, link: Link) -> list[Room]:
        """Rooms that the decode rank of this link asked for."""
        return [room for room in self.rooms.values() if any(leg.link is link for leg in room.legs.values())]

    def refusal(self, ask: Ask, rank: RankId, dp: int) -> Failure | None:
        """Why this cannot be asked for: it failed already, or somebody else asked."""
        past = self.ended.get(ask.room)
        if past is not None:
            return past
        room = self.rooms.get(ask.room)
        if room is not None and (rank in room.legs or (room.legs and room.dp != dp)):
            return Failure("PD4023", f"room {ask.room} was asked for by another decode {tuple(rank)}", "decode")
        return None

    def enter(self, leg: Leg, rank: RankId, dp: int, expected: tuple[RankId, ...]) -> Room:
        """Note what was asked for; the room may not be open yet."""
        self.given_up.forget(leg.room)
        room = self.rooms.setdefault(leg.room, Room(leg.room))
        room.dp, room.expected = dp, expected
        room.legs[rank] = self.legs[(leg.room, leg.attempt)] = leg
        return room

    def strike(self, room: Room, leg: Leg) -> None:
        """A leg that was asked for too early is no longer wanted."""
        self.drop(leg)
        room.legs = {rank: other for rank, other in room.legs.items() if other is not leg}
        if room.handle is None and not room.legs:
            self.close(room)

    def drop(self, leg: Leg) -> None:
        """A leg is settled."""
        self.legs.pop((leg.room, leg.attempt), None)

    def close(self, room: Room) -> None:
        """A room has ended."""
        if room.timer is not None:
            room.timer.stop()
        if self.rooms.get(room.room) is room:
            del self.rooms[room.room]
