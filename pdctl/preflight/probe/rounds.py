"""Which pairs of hosts are probed at the same time: no host twice in a round, so that no pair slows another. Pure."""

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

H = TypeVar("H", bound=Hashable)


def rounds(pairs: Iterable[tuple[H, H]]) -> list[list[tuple[H, H]]]:
    """Every pair once, in rounds in which no host occurs twice. Pairs of a host with itself are allowed.

    At most max(sources, targets) rounds where the two are different hosts (prefill and decode apart), else at most
    two a host, plus one for pairs of a host with itself: O(N), where one after another would be O(N²).
    """
    wanted = list(dict.fromkeys(pairs))
    sources = list(dict.fromkeys(source for source, _ in wanted))
    targets = list(dict.fromkeys(target for _, target in wanted))
    if set(sources).isdisjoint(targets):
        return _filled(wanted, _rotation(sources, targets))
    hosts = list(dict.fromkeys([*sources, *targets]))
    alone = [pair for pair in wanted if pair[0] == pair[1]]
    return [*_filled([pair for pair in wanted if pair[0] != pair[1]], _circle(hosts)), *([alone] if alone else [])]


def _rotation(sources: Sequence[H], targets: Sequence[H]) -> dict[frozenset[H], int]:
    """The round of each pair of two disjoint groups: a Latin rectangle."""
    size = max(len(sources), len(targets))
    places = ((i, j) for i in range(len(sources)) for j in range(len(targets)))
    return {frozenset((sources[i], targets[j])): (i + j) % size for i, j in places}


def _circle(hosts: Sequence[H]) -> dict[frozenset[H], int]:
    """The round of each pair of one group: the circle method of tournaments, one place fixed, the others turning."""
    size = len(hosts) + len(hosts) % 2
    found = {}
    for turn in range(size - 1):
        seats = [size - 1, *((turn + k) % (size - 1) for k in range(size - 1))]
        for k in range(size // 2):
            i, j = (seats[0], seats[1]) if k == 0 else (seats[1 + k], seats[size - k])
            if max(i, j) < len(hosts):
                found[frozenset((hosts[i], hosts[j]))] = turn
    return found


def _filled(pairs: Sequence[tuple[H, H]], turns: dict[frozenset[H], int]) -> list[list[tuple[H, H]]]:
    """Pairs by their round; (a, b) and (b, a) share one slot, so the second goes to a further round of its own."""
    table: dict[tuple[int, int], list[tuple[H, H]]] = {}
    seen: dict[frozenset[H], int] = {}
    for pair in pairs:
        key = frozenset(pair)
        again = seen[key] = seen.get(key, -1) + 1
        table.setdefault((again, turns[key]), []).append(pair)
    return [table[key] for key in sorted(table)]
