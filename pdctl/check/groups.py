"""What is judged: groups of equal engines. A group is judged once and its members are listed all."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from pdctl.check.moves import Moves
from pdctl.check.words import Word
from pdctl.derive.connectors import Connector
from pdctl.versions import Release, released
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.rules import Evidence, Finding, Outcome, Side, Skipped
from pdctl_transfer.rules.pair import FIELDS


class Group(Struct, frozen=True):
    """Engines of one role with one layout. `sides` differ in the origin of their values only, one a pool or file.

    Where no layout could be made, `blocked` says why and stands for all outcomes of the group's pairs.
    """

    role: Role
    name: str
    members: tuple[str, ...]
    sides: tuple[Side, ...] = ()
    blocked: tuple[Finding | Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: str | None = None
    """Why the layout is not known, where it is not: `sides` then say settings alone, and no rule looks at buffers."""
    draft: str | None = None
    """Why the draft's buffers are not known, where they are not: the layout is the target's alone."""
    outcomes: tuple[Outcome, ...] = ()
    """What was found out about the group besides its pairs: a live layout that is not the derived one."""
    words: tuple[Word, ...] = ()
    """The flags that a fleet file passes through to these engines."""
    max_positions: int | None = None
    """Tokens of the longest request by the model's own config."""
    connector: Connector | None = None
    """The connectors that a fleet file states for engines of vLLM; None where they are left to pdctl."""
    moves: Moves = Moves()
    """How its engines are told to move state."""
    stated: Release | None = None
    """The engine's version as a fleet file has it; by the manifest where there is none."""

    @property
    def side(self) -> Side:
        """The side that rules look at."""
        return self.sides[0]

    @property
    def manifest(self) -> Manifest:
        """The layout of every member."""
        return self.sides[0].manifest

    @property
    def release(self) -> Release:
        """The engine release that the group is judged for."""
        if self.stated is not None or not self.sides:
            return self.stated or released("", None)
        said = self.side.evidence("engine_version")
        return released(self.manifest.engine.name, self.manifest.engine.version, said.source, "manifest")

    def flag(self, *names: str) -> Word | None:
        """The last of these flags, as engines have it."""
        return next((word for word in reversed(self.words) if not set(names).isdisjoint(word.names)), None)

    def same_elsewhere(self, evidence: Evidence) -> list[Evidence]:
        """Where the group's other pools state the value that `evidence` shows of the first."""
        first, *others = self.sides
        names = [name for name in FIELDS if first.known(name) == evidence]
        return [other.evidence(name) for other in others for name in names]


def merged(groups: Iterable[Group]) -> list[Group]:
    """Groups of one role, one layout and equal flags made one, in the order in which they came."""
    found: dict[object, Group] = {}
    for group in groups:
        flags = [(word.name, word.value) for word in group.words]
        key: object = (
            group.name if group.blocked else (group.role, encode_manifest(group.manifest), group.moves.key, *flags)
        )
        if key in found:
            first = found[key]
            found[key] = structs.replace(
                first,
                members=first.members + group.members,
                sides=first.sides + group.sides,
                notes=first.notes + group.notes,
                outcomes=first.outcomes + group.outcomes,
            )
        else:
            found[key] = group
    return list(found.values())


def told_apart(groups: Sequence[tuple[str, Group]]) -> list[Group]:
    """Groups with the files they come from, renamed after the file where two files use one name."""
    names = [group.name for _, group in groups]
    return [_renamed(group, file) if names.count(group.name) > 1 else group for file, group in groups]


def _renamed(group: Group, file: str) -> Group:
    name = f"{file}:{group.name}"
    return structs.replace(
        group,
        name=name,
        members=tuple(f"{file}:{member}" for member in group.members),
        sides=tuple(structs.replace(side, name=name) for side in group.sides),
        blocked=tuple(structs.replace(outcome, subject=name) for outcome in group.blocked),
    )
