"""What is made once of an object and kept as long as it lives."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


class Kept:
    """Safe from any thread: two that come at the same time may both make it, equally."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[object, dict[object, Any]] = WeakKeyDictionary()

    def about(self, owner: object, what: Key, make: Callable[[Key], Made]) -> Made:
        """`make(what)`, made at most once as long as `owner` lives."""
        made = self._made.setdefault(owner, {})
        if what not in made:
            made[what] = make(what)
        found: Made = made[what]
        return found
