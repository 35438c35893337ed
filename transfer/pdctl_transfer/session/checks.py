"""Judgements a peer makes before it moves anything: of the pair, of its fabric, of index lists."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.manifest import Component, Manifest
from pdctl_transfer.region import Region
from pdctl_transfer.rules import Finding, Pair, judge
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.options import Verify, Way
from pdctl_transfer.session.wire.messages import Ask

Indices = Mapping[str, NDArray[np.int64]]
SINGLE = frozenset({"slot", "row"})


def default_check(prefill: Manifest, decode: Manifest) -> Iterable[Finding]:
    """Findings of the core's own rules."""
    return [outcome for outcome in judge(Pair.of(prefill, decode)) if isinstance(outcome, Finding)]


def fallback_fault(me: Identity) -> Failure | None:
    """PD4013 where RDMA was asked for, TCP carries the bytes, and that is not allowed."""
    fabric = me.fabric
    if me.options.allow_fallback or fabric.requested != "rdma" or fabric.observed_transport() != "tcp":
        return None
    cause = f"{me.side} {me.rank}: {fabric.kind} was asked for RDMA and moves bytes over TCP"
    return Failure("PD4013", cause, me.side)


def asked_fault(copies: bool, ways: Mapping[str, Way], verify: Verify) -> str:
    """Why a prefill rank cannot do what decode asks for; empty where it can. `copies`: whether it has a copier."""
    gathered = sorted(kind for kind, way in ways.items() if way != "direct")
    if copies or (not gathered and verify == "none"):
        return ""
    wanted = f"{gathered[0]} {ways[gathered[0]]}" if gathered else f"checksums ({verify})"
    return f"decode wants {wanted}, and the CPU of prefill cannot reach its memory"


class Held:
    """Which ids can be items of a rank of this pipeline stage. Of each of its kinds: how many items its shortest region
    has, and whether a request has exactly one."""

    def __init__(self, manifest: Manifest, pp: int, regions: Sequence[Region]) -> None:
        self._known = {component.kind for stage in manifest.stages for component in stage.components}
        self._kinds: list[tuple[Component, int]] = []
        at = 0
        for component in (c for stage in manifest.stages if stage.pp_rank == pp for c in stage.components):
            here = regions[at : at + len(component.entries)]
            at += len(component.entries)
            if here:
                self._kinds.append((component, min(region.items for region in here)))

    def fault(self, indices: Indices, *, unique: bool, whole: bool = True) -> str:
        """Why these ids cannot be; empty where they can.

        Every kind of the stage's state needs its ids, be it an empty list: what both sides forget would count as moved.
        A kind that no stage has is a mistake; one of another stage is not, engines give all ranks the same. `unique`:
        items are written, so none may be named twice. `whole`: no more ids follow.
        """
        if not indices.keys() <= self._known:
            unknown = sorted(indices.keys() - self._known)
            return f"{unknown[0]}: not a kind of its state, which has {', '.join(sorted(self._known))}"
        for component, items in self._kinds:
            ids = indices.get(component.kind)
            if ids is None and not whole:
                continue
            fault = _ids_fault(component, items, ids, unique, whole)
            if fault:
                return f"{component.kind}: {fault}"
        return ""


def _ids_fault(component: Component, items: int, ids: NDArray[np.int64] | None, unique: bool, whole: bool) -> str:
    if ids is None:
        return "no ids were given; an empty list says that there are none"
    if component.index_space in SINGLE and len(ids) != 1 and (whole or len(ids)):
        return f"{len(ids)} ids, exactly one {component.index_space} is needed"
    if len(ids) and ids.view(np.uint64).max() >= items:  # a negative one is a large one
        return f"id {int(ids[(ids < 0) | (ids >= items)][0])}, there are {items} items"
    if unique and len(ids) > 1:
        ordered = np.sort(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            return f"id {int(twice[0])} is there more than once"
    return ""


def length_fault(part: Part, ours: Indices, theirs: Indices, *, whole: bool = True) -> str:
    """Why two sides' id lists do not belong together; empty where they do. `ours` are prefill's, `whole`: all of
    them."""
    for kind in part.kinds:
        here, there = len(ours.get(kind, ())), len(theirs.get(kind, ()))
        if here > there or (whole and here != there):
            return f"{kind}: {here} ids on prefill, {there} on decode"
    return ""


def ask_fault(me: Identity, held: Held, ask: Ask, theirs: Indices) -> Failure | None:
    """PD4016, PD4021: why a decode rank cannot be served as it asks, whatever prefill sends. `held`: decode's."""
    fault = asked_fault(me.copier.can_copy, ask.ways, ask.verify)
    if fault:
        return Failure("PD4016", f"room {ask.room}: {fault}", "prefill")
    fault = held.fault(theirs, unique=True)
    if fault:
        return Failure("PD4021", f"room {ask.room}: decode {fault}", "decode")
    return None


def sent_fault(held: Held, part: Part, room: int, ours: Indices, theirs: Indices, *, whole: bool) -> Failure | None:
    """PD4020, PD4021: which ids of prefill are wrong, before a byte moves. `held`: prefill's. `whole`: it sends no more
    than `ours`."""
    fault = held.fault(ours, unique=False, whole=whole)
    if fault:
        return Failure("PD4021", f"room {room}: prefill {fault}", "prefill")
    fault = length_fault(part, ours, theirs, whole=whole)
    if fault:
        return Failure("PD4020", f"room {room}: {fault}", "prefill")
    return None
