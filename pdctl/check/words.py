"""Engine flags of a pool, where a rule needs one that shapes no buffer."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from pdctl.flags import load, read_words


class Word(Struct, frozen=True):
    """A flag as it was given: every spelling of it, its value (empty for a switch), its place in the fleet file."""

    names: tuple[str, ...]
    value: str
    where: str

    @property
    def name(self) -> str:
        """The spelling that flags are compared by, whatever was written."""
        return self.names[0]

    @property
    def number(self) -> int | None:
        """The value as a whole number; None where it is none, as a placeholder is."""
        return int(self.value) if self.value.isascii() and self.value.isdigit() and len(self.value) < 19 else None


def words(engine: str, args: Sequence[str], places: Sequence[str]) -> Iterator[Word]:
    """The flags among `args` in every spelling of the engine. `places`: the line of each word."""
    for one in read_words(load(engine), args).given:
        if not one.part and not one.off:
            yield Word(one.flag.names, one.value, f"{places[one.index]} {one.spelled}")
