"""Failures of rooms that one side has ended and the other has not spoken of yet. Bounded in number and in time."""

import time
from collections import OrderedDict
from typing import Final

from pdctl_transfer.session.life import Failure

MOST: Final = 4096


class Recent:
    """The failures of the last `within_s` seconds, at most MOST of them."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._rooms: OrderedDict[int, tuple[float, Failure]] = OrderedDict()

    def put(self, room: int, failure: Failure) -> None:
        """Remember it."""
        self._rooms[room] = (time.monotonic(), failure)
        self._rooms.move_to_end(room)
        if len(self._rooms) > MOST:
            self._rooms.popitem(last=False)

    def get(self, room: int) -> Failure | None:
        """The failure, if it is recent."""
        at, failure = self._rooms.get(room, (0.0, None))
        return failure if failure is not None and time.monotonic() - at < self._within_s else None

    def forget(self, room: int) -> None:
        """The room begins anew."""
        self._rooms.pop(room, None)
