"""Flags for what the fleet file settles: one truth for each value, and an error that names both places of two.

A flag may stand in `args` for a field that the file leaves out, and beside a field that says the same. Ports, addresses
and the model are settled by pdctl whatever the file says, because router and peers are told of them.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from pdctl.errors import FleetFileError
from pdctl.flags import Given, Reading
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool
from pdctl.redact import hide_argv
from pdctl_transfer.rules.outcome import Evidence, Finding


class Settled(Struct, frozen=True):
    """A flag that a field sets. `fields`: those that decide, by their keys in the pool, or from the file's top with a
    dot before. `value`: what the flag would have to say; None: nothing that `args` say is right."""

    flag: str
    fields: tuple[str, ...]
    value: str | None
    always: bool = False
    """pdctl sets it whether the file writes the field or not."""

    @property
    def placed(self) -> bool:
        """Whether it says where things are: whoever starts the engine says that in `args` as they like."""
        return self.fields[0] in (".model.path", "hosts") or self.fields[0].startswith("ports.")


class Contradiction(Struct, frozen=True):
    """PD3102: what a flag says, and where; the field that it contradicts, and where that stands and what it says.

    `beside` is None where pdctl sets the value whatever the file writes.
    """

    pool: str
    spoken: str
    where: str
    field: str
    beside: Evidence | None

    @property
    def error(self) -> FleetFileError:
        """For who starts something: the file cannot be used."""
        message = f"{self.spoken} is what `{self.field}` sets"
        if self.beside is not None:
            message += f": {self.beside.text} by {self.beside.source}"
        hint = f"write `{self.field}` alone; then `check` judges it, and both sides and the router are told of it"
        return FleetFileError(message, where=self.where, code="PD3102", hint=hint)

    @property
    def finding(self) -> Finding:
        """For who judges: one of the things that are wrong with the fleet."""
        evidence = (Evidence(self.where, self.spoken), *([self.beside] if self.beside else []))
        return Finding("PD3102", self.pool, evidence, {"flag": self.spoken, "field": self.field})


def contradictions(
    loaded: LoadedFleet, pool: Pool, reading: Reading, settled: Iterable[Settled]
) -> Iterator[Contradiction]:
    """Flags in the pool's `args` beside a field that says something else."""
    known = [rule for rule in settled if not (loaded.fleet.external and rule.placed)]
    for one in reading.given:
        for rule in known:
            same = rule.value is not None and (rule.value == one.value or rule.value in one.values)
            if one.called(rule.flag) and not one.part and not same:
                written = [key for field in rule.fields if (key := key_of(pool, field)) in loaded]
                if written or rule.always:
                    yield _twice(loaded, pool, one, rule, written)
                    break


def key_of(pool: Pool, field: str) -> str:
    """A field's dotted key in the fleet file."""
    return field[1:] if field.startswith(".") else f"{pool.key}.{field}"


def _twice(loaded: LoadedFleet, pool: Pool, one: Given, rule: Settled, written: list[str]) -> Contradiction:
    field = (written[0] if written else rule.fields[0]).removeprefix(f"{pool.key}.").removeprefix(".")
    spoken = " ".join(hide_argv([one.spelled, *one.values]))
    beside = None
    if written:
        says = f"{rule.flag} {rule.value}" if rule.value is not None else "another"
        beside = Evidence(loaded.where(written[0]), says)
    return Contradiction(pool.name, spoken, loaded.where(f"{pool.key}.args.{one.index}"), field, beside)
