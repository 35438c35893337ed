"""Engine flags of a pool, where a rule needs one that shapes no buffer."""

from collections.abc import Iterator, Sequence

from msgspec import Struct


class Word(Struct, frozen=True):
    """A flag as it was given: its name in dashes, its value (empty for a switch), and its place in the fleet file."""

    name: str
    value: str
    where: str

    @property
    def number(self) -> int | None:
        """The value as a whole number; None where it is none, as a placeholder is."""
        return int(self.value) if self.value.isascii() and self.value.isdigit() and len(self.value) < 19 else None


def words(args: Sequence[str], places: Sequence[str]) -> Iterator[Word]:
    """The flags among `args`: `--a b`, `--a=b`, dashes or underscores. `places`: the line of each."""
    for index, (arg, place) in enumerate(zip(args, places, strict=True)):
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            following = args[index + 1] if index + 1 < len(args) else ""
            if not equals and not following.startswith("--"):
                value = following
            yield Word(name.replace("_", "-"), value, f"{place} {name}")
