"""PD1033: each side must have the role that its own flags give it.

Two producers start, and nobody receives. What the flags say is judged here, so that it is a finding beside all others
and not input that cannot be used.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, setting


def check_roles(pair: Pair) -> Iterator[Outcome]:
    """One finding a side whose flags name the other role."""
    for role, side in pair.sides:
        stated = setting(side.manifest, "kv_role")
        if stated in (None, "both", role):
            continue
        yield pair.finding("PD1033", (side.evidence("kv_role"),), side=role, stated=stated)
