"""PD1041: the data-parallel ranks of one engine of vLLM are each somewhere, and no two of them are one.

`dp_local` says how many each node has. By flags every engine of a pool, and every host, is given the same words: a rank
among them is then the rank of all. Pools whose engines meet at one address are parts of one engine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from pdctl.check.groups import Group
from pdctl.check.words import Word
from pdctl.flags import dialect
from pdctl.fleet import LoadedFleet, Pool
from pdctl_transfer.rules import Evidence, Finding, Outcome

START: Final = ("--data-parallel-rank", "--data-parallel-start-rank")
SIZE: Final = "--data-parallel-size"
LOCAL: Final = "--data-parallel-size-local"
ADDRESS: Final = "--data-parallel-address"


class Part(Struct, frozen=True):
    """Ranks from `start` to before `end` that one engine of a pool has by flags, of `size` in all."""

    name: str
    start: int
    end: int
    size: int | None
    words: tuple[Word, ...]

    @property
    def said(self) -> str:
        """`rank 3`, `ranks 0 to 3`."""
        return f"rank {self.start}" if self.end - self.start == 1 else f"ranks {self.start} to {self.end - 1}"

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Where its flags stand."""
        return tuple(Evidence(word.where, word.value) for word in self.words)


def check_rank_ranges(groups: Iterable[Group], loaded: LoadedFleet) -> Iterator[Outcome]:
    """One finding a pool, and one for pools that are parts of one engine."""
    pools: Mapping[str, Pool] = {pool.name: pool for pool in loaded.pools()}
    together: dict[tuple[str, str], list[Part]] = {}
    for group in groups:
        if not group.sides or dialect(group.manifest.engine.name) != "vllm":
            continue
        pool = pools[group.name]
        if pool.dp_local and sum(pool.dp_local) != pool.dp:
            given = " + ".join(map(str, pool.dp_local))
            where = Evidence(loaded.where(f"{pool.key}.dp_local"), f"dp_local: {given}")
            what = f"{pool.name}: {given} ranks on its nodes, dp is {pool.dp}"
            yield Finding("PD1041", pool.name, (where, Evidence(loaded.source(f"{pool.key}.dp"), "dp")), {"what": what})
        part = _part(group, pool)
        if part is None:
            continue
        if (wrong := _alone(group, part, pool.hosts)) is not None:
            yield Finding("PD1041", group.name, part.evidence, {"what": f"{group.name}: {wrong}"})
        elif (address := group.flag(ADDRESS)) is not None and len(group.members) == 1:
            together.setdefault((group.role, address.value), []).append(part)
    for parts in together.values():
        yield from _joined(parts)


def _part(group: Group, pool: Pool) -> Part | None:
    """What flags say of the ranks; None where they leave them to the engine, or are no numbers."""
    start, local, size = group.flag(*START), group.flag(LOCAL), group.flag(SIZE)
    if (start is None and local is None) or pool.nodes > 1:
        return None
    begin, count = start.number if start else 0, local.number if local else 1
    if begin is None or count is None:
        return None
    total = size.number if size else (pool.dp if pool.dp > 1 else None)
    words = tuple(word for word in (start, local, size) if word)
    return Part(group.name, begin, begin + count, total, words)


def _alone(group: Group, part: Part, hosts: Sequence[str]) -> str | None:
    """What is wrong with the ranks of one pool, whatever others have."""
    start, local = group.flag(*START), group.flag(LOCAL)
    sharing = max(group.members, hosts, key=len)
    if start is not None and len(sharing) > 1:
        return f"{', '.join(sharing[:4])} all have {part.said}"
    if part.size is not None and part.end > part.size:
        return f"{part.said}, of {part.size} from 0"
    if start is not None and start.name == START[0] and local and local.number != 1:
        return f"a rank of its own goes with {LOCAL} 1, found {local.value}"
    return None


def _joined(parts: Sequence[Part]) -> Iterator[Finding]:
    """Parts of one engine: the first two that overlap, and ranks that none of them has."""
    if len(parts) < 2 or len({part.size for part in parts}) > 1:
        return
    names = ", ".join(part.name for part in parts)
    ordered = sorted(parts, key=lambda part: (part.start, part.end))
    for one, other in pairwise(ordered):
        if other.start < one.end:
            what = f"{one.name} has {one.said}, {other.name} {other.said}"
            yield Finding("PD1041", names, (*one.evidence, *other.evidence), {"what": what})
            return
    had = sum(part.end - part.start for part in parts)
    if parts[0].size is not None and had < parts[0].size:
        what = f"{names} have {had} of {parts[0].size} ranks; the others are waited for"
        yield Finding("PD1041", names, tuple(one for part in parts for one in part.evidence), {"what": what})
