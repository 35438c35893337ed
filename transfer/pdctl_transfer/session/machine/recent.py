"""What ended a while ago, bounded in number and in time: for whoever speaks of it late."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

MOST: Final = 4096
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values of the last `within_s` seconds, at most MOST of them."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._kept: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def put(self, key: Key, value: Value, now: float) -> None:
        """Remember it."""
        self._kept[key] = (now, value)
        self._kept.move_to_end(key)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def knows(self, key: Key, now: float) -> bool:
        """Whether it is remembered."""
        return key in self._kept and now - self._kept[key][0] < self._within_s

    def get(self, key: Key, now: float) -> Value | None:
        """The value, if it is recent."""
        return self._kept[key][1] if self.knows(key, now) else None

    def forget(self, key: Key) -> None:
        """It begins anew."""
        self._kept.pop(key, None)
