"""Engine flags in a pool's `args`, where a rule needs one that shapes no buffer."""

from collections.abc import Iterator
from typing import NamedTuple

from pdctl.fleet import LoadedFleet, Pool


class Word(NamedTuple):
    """A flag's value, and the line it stands in."""

    value: str
    where: str


def flag(loaded: LoadedFleet, pool: Pool, *names: str) -> Word | None:
    """The last of these flags in the pool's args, as engines have it: `--a b`, `--a=b`, dashes or underscores."""
    found = None
    for name, value, index in _flags(pool.args):
        if name in names:
            found = Word(value, f"{loaded.where(f'{pool.key}.args.{index}')} {name}")
    return found


def _flags(args: list[str]) -> Iterator[tuple[str, str, int]]:
    for index, word in enumerate(args):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if not equals and index + 1 < len(args):
                value = args[index + 1]
            yield name.replace("_", "-"), value, index


def engine_of(loaded: LoadedFleet, pool: Pool) -> str:
    """The engine that the pool runs."""
    return pool.engine or loaded.fleet.engine
