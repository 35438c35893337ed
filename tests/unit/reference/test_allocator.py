"""Places: taken whole or not at all, given back once they are safe."""

from pdctl.engines.reference.allocator import Allocator, Place
from pdctl.engines.reference.pools import Sizes


def taken(allocator: Allocator, pages: int) -> Place:
    place = allocator.take(pages)
    assert place is not None
    return place


def test_nothing_is_taken_where_not_all_is_there() -> None:
    allocator = Allocator(Sizes(page=4, slot=2, row=2))
    taken(allocator, 3)
    assert allocator.take(2) is None
    assert (allocator.free_pages, allocator.free_slots) == (1, 1)


def test_quarantined_items_are_not_handed_out() -> None:
    """Fails if a page can be reused while a late write may still land in it."""
    allocator = Allocator(Sizes(page=4, slot=1, row=1))
    settled = False
    allocator.give(taken(allocator, 4), lambda: settled)
    assert allocator.take(1) is None
    assert allocator.quarantined_pages == 4
    settled = True
    assert len(taken(allocator, 4).pages) == 4
    assert allocator.quarantined_pages == 0


def test_no_item_is_held_twice() -> None:
    allocator = Allocator(Sizes(page=8, slot=4, row=4))
    held = [taken(allocator, 2) for _ in range(3)]
    allocator.give(held.pop(1))
    held += [taken(allocator, 3)]
    pages = [page for place in held for page in place.pages]
    assert len(pages) == len(set(pages)) == 7
    assert len({place.slot for place in held}) == 3
