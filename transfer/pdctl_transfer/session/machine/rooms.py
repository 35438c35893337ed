"""Which rooms are open on which connections of ranks. Of too many rooms the oldest is forgotten."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final

MAX_ROOMS: Final = 65536


class Rooms:
    """A room is known while at least one connection says that it is open there."""

    def __init__(self) -> None:
        self._openers: OrderedDict[int, dict[Hashable, None]] = OrderedDict()
        self._of: dict[Hashable, set[int]] = {}

    def open(self, owner: Hashable, room: int) -> None:
        """It is open there, and nowhere since."""
        self._of.setdefault(owner, set()).add(room)
        openers = self._openers.setdefault(room, {})
        openers.pop(owner, None)
        openers[owner] = None
        if len(self._openers) > MAX_ROOMS:
            oldest, openers = self._openers.popitem(last=False)
            for opener in openers:
                self._of[opener].discard(oldest)

    def close(self, owner: Hashable, room: int) -> None:
        """It is no longer open there."""
        self._of.get(owner, set()).discard(room)
        openers = self._openers.get(room, {})
        openers.pop(owner, None)
        if not openers:
            self._openers.pop(room, None)

    def drop(self, owner: Hashable) -> None:
        """The connection has ended."""
        for room in list(self._of.get(owner, ())):
            self.close(owner, room)
        self._of.pop(owner, None)

    def openers(self, room: int) -> Iterator[Hashable]:
        """Where it is open, the last to say so first."""
        return reversed(self._openers.get(room, {}))
