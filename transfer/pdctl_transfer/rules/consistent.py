"""PD1021: a manifest must agree with itself before anything can be concluded from it.

Every item length follows from the entry's shape and the rank count; stages must tile the layers. A document that says
two things is refused, whichever engine wrote it.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.algebra import Fault, faults
from pdctl_transfer.rules.outcome import Finding, Held, Outcome
from pdctl_transfer.rules.pair import Pair

SHOWN = 4


def check_consistent(pair: Pair) -> Iterator[Outcome]:
    """One outcome a side; of many faults the first few are shown, and how many there are."""
    for role, side in pair.sides:
        found = faults(side.manifest)
        if not found:
            yield Held("consistent", side.name, "every item length follows from its shape")
            continue
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        evidence = tuple(side.said(said(fault)) for fault in found[:SHOWN])
        params = {"side": role, "what": said(found[0]) + more}
        yield Finding("PD1021", side.name, evidence, params)


def said(fault: Fault) -> str:
    """`$.stages[0].layers: found [3, 1], expected start <= end`."""
    return f"{fault.path}: found {fault.found}, expected {fault.expected}"
