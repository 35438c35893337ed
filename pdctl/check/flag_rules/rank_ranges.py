"""PD1041: data-parallel ranks that a pool's hosts claim by flags must not overlap, and lie within their number.

Every engine of a pool, and every host, is given the same flags. A rank among them is then the rank of all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from pdctl.check.groups import Group
from pdctl_transfer.rules import Evidence, Finding, Outcome

START: Final = ("--data-parallel-rank", "--data-parallel-start-rank")


def check_rank_ranges(groups: Iterable[Group], hosts: Mapping[str, Sequence[str]]) -> Iterator[Outcome]:
    """One finding a pool. `hosts`: those that each pool names."""
    for group in groups:
        if not group.sides or group.manifest.engine.name != "vllm":
            continue
        start = group.flag(*START)
        if start is None or start.number is None:
            continue
        local, size = (group.flag(name) for name in ("--data-parallel-size-local", "--data-parallel-size"))
        end = start.number + ((local.number if local else None) or 1)
        evidence = tuple(Evidence(word.where, word.value) for word in (start, local, size) if word)
        held = f"rank {start.number}" if end - start.number == 1 else f"ranks {start.number} to {end - 1}"
        sharing = max(group.members, hosts.get(group.name, ()), key=len)
        if len(sharing) > 1:
            what = f"{group.name}: {', '.join(sharing[:4])} all have {held}"
        elif size and size.number is not None and end > size.number:
            what = f"{group.name}: {held}, of {size.number} from 0"
        elif start.name == START[0] and local and local.number != 1:
            what = f"{group.name}: a rank of its own goes with --data-parallel-size-local 1, found {local.value}"
        else:
            continue
        yield Finding("PD1041", group.name, evidence, {"what": what})
