"""What happens to the registry's table, and what follows from it."""

from collections.abc import Hashable

from msgspec import Struct

from pdctl_transfer.session.wire.messages import Message, Register

Owner = Hashable
"""A connection."""


class Event(Struct, frozen=True):
    """Something that a connection said or did. `now` in seconds of a clock that never goes back."""

    now: float
    owner: Owner


class Registered(Event, frozen=True):
    """It registers a rank."""

    record: Register


class Beaten(Event, frozen=True):
    """It lives; a rank says as whom it has registered."""

    incarnation: str = ""


class RoomOpened(Event, frozen=True):
    """A room is open on its rank."""

    room: int


class RoomClosed(Event, frozen=True):
    """A room is no longer open on its rank."""

    room: int


class LookedUp(Event, frozen=True):
    """It asks who serves a room."""

    serial: int
    room: int


class Left(Event, frozen=True):
    """It says good-bye."""


class Gone(Event, frozen=True):
    """It has ended."""


class TimePassed(Struct, frozen=True):
    """A tick, every TICK_S."""

    now: float


class SendMessage(Struct, frozen=True):
    """Send it over that connection."""

    owner: Owner
    message: Message


class CloseLink(Struct, frozen=True):
    """End that connection; nothing of it is known any more."""

    owner: Owner
    cause: str


Action = SendMessage | CloseLink
