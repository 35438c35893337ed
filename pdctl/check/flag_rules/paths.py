"""PD1050: one connector on each side must bring the state from prefill to decode.

One that only offloads or stores for its own engine does not: decode computes every prompt itself. Through a store that
several engines share state may come over; when, and what of it, is not judged.
"""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl.derive.connectors import Connector, mover
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome

FLAG = "--kv-transfer-config"
OFFLOADING = "--kv-offloading-size"
"""It puts its own connector in the place of any other."""


def check_paths(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Only what is stated: a connector that is left to pdctl moves."""
    for group in (prefill, decode):
        if group.connector is not None:
            yield _path(group, group.connector)


def _path(group: Group, tree: Connector) -> Outcome:
    """What is wrong with the way that one side's state goes, or what brings it."""
    moves = mover(tree)
    word = group.flag(OFFLOADING) or group.flag(FLAG)
    evidence = (Evidence(word.where if word else group.side.evidence("connector").source, tree.label),)
    if moves is None:
        what = f"{group.role}: {tree.label} keeps state for its own engine; nothing in it goes from prefill to decode"
        return Finding("PD1050", group.name, evidence, {"what": what})
    if moves.kind.does == "shares":
        what = f"{group.role}: {moves.name} goes through a store that engines share ({moves.kind.backend}): not judged"
        return Finding("PD1050", group.name, evidence, {"what": what}, "warning")
    return Held("paths", group.name, f"{moves.name} moves the state")
