"""Who holds which page, slot and row, and which of them must not be touched yet."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pdctl.engines.reference.pools import Sizes


@dataclass(frozen=True)
class Place:
    """Where one request's state lies; the same ids on every rank of a group."""

    pages: tuple[int, ...]
    slot: int
    row: int


class Allocator:
    """Free lists of one group. What is given back last is taken last, so that reuse is as late as it can be."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._pages = deque(range(sizes.page))
        self._slots = deque(range(sizes.slot))
        self._rows = deque(range(sizes.row))
        self._quarantine: list[tuple[Place, Callable[[], bool]]] = []

    def take(self, pages: int) -> Place | None:
        """A place with so many pages, or None if there is no room now."""
        self.sweep()
        if len(self._pages) < pages or not self._slots or not self._rows:
            return None
        taken = tuple(self._pages.popleft() for _ in range(pages))
        return Place(taken, self._slots.popleft(), self._rows.popleft())

    def give(self, place: Place, reusable: Callable[[], bool] = lambda: True) -> None:
        """Give a place back; while `reusable` says no, a late write may still land in it, and it stays out of use."""
        if not reusable():
            self._quarantine.append((place, reusable))
            return
        self._pages.extend(place.pages)
        self._slots.append(place.slot)
        self._rows.append(place.row)

    def sweep(self) -> None:
        """Return to use what has become safe."""
        held, self._quarantine = self._quarantine, []
        for place, reusable in held:
            self.give(place, reusable)

    @property
    def free_pages(self) -> int:
        """Pages that can be taken now."""
        return len(self._pages)

    @property
    def free_slots(self) -> int:
        """Slots that can be taken now."""
        return len(self._slots)

    @property
    def quarantined_pages(self) -> int:
        """Pages held back because a transfer into or out of them has not settled."""
        return sum(len(place.pages) for place, _ in self._quarantine)


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that so many tokens fill."""
    return -(-tokens // page_size)


def prefix(pages: Sequence[int], tokens: int, page_size: int) -> list[int]:
    """The pages that hold the first tokens."""
    return list(pages[: pages_for(tokens, page_size)])
