"""Which body does which work of a sender, and how much of it may be under way to one peer."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from pdctl_transfer.session.drive import writes
from pdctl_transfer.session.drive.jobs import Body
from pdctl_transfer.session.drive.legwork import LegWork
from pdctl_transfer.session.drive.stream import stream
from pdctl_transfer.session.machine import actions as do

LANES: Final[Mapping[type, tuple[str, int]]] = {do.Packed: ("packed", 1), do.Prove: ("prove", 1)}
"""Jobs for one peer that run at once. Of writes one is on the wire, one gathers the next, one ends; a job that packs
does all that by itself."""


def lanes_of(work: do.Work, legs: Sequence[LegWork]) -> dict[str, int]:
    """The lanes that this work keeps busy, one a peer, and how many jobs each takes."""
    kind, most = LANES.get(type(work), ("write", 3))
    return {f"{kind} {one.partner.hello.incarnation}": most for one in legs}


def body_of(work: do.Work, resources: writes.Resources, legs: Sequence[LegWork]) -> Body:
    """What a worker does for these legs."""
    match work:
        case do.Straight(number=n):
            return partial(writes.straight, resources, legs[0], n)
        case do.Sum():
            return partial(writes.sum_up, resources, legs[0])
        case do.Staged(chunk=chunk, base=base):
            return partial(writes.staged, resources, legs[0], chunk, base)
        case do.Packed(number=n):
            return partial(stream, resources, legs, n)
        case do.Prove():
            return partial(writes.prove, resources, legs[0])
    raise TypeError(f"no work of a sender: {work}")
