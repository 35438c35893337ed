"""Judgements a peer makes before it moves anything: of the pair, of its fabric, of index lists."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.layout.manifest import Component, Manifest
from pdctl_transfer.rules import Finding, Pair, judge
from pdctl_transfer.session.bytes.cost import Way
from pdctl_transfer.session.bytes.work import Part
from pdctl_transfer.session.life import Failure, Side
from pdctl_transfer.session.options import Region, Verify

if TYPE_CHECKING:
    from pdctl_transfer.session.identity import Identity
    from pdctl_transfer.session.leg import Leg

Indices = Mapping[str, NDArray[np.int64]]
SINGLE = frozenset({"slot", "row"})


def default_check(prefill: Manifest, decode: Manifest) -> Iterable[Finding]:
    """Findings of the core's own rules."""
    return [outcome for outcome in judge(Pair.of(prefill, decode)) if isinstance(outcome, Finding)]


def fallback_fault(me: "Identity") -> Failure | None:
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


def own_fault(manifest: Manifest, pp: int, regions: Sequence[Region], indices: Indices, *, unique: bool) -> str:
    """Why these ids cannot be the items of a rank of this pipeline stage; empty where they can.

    Every kind of the stage's state needs its ids, be it an empty list: what both sides forget would count as moved. A
    kind that no stage has is a mistake; one of another stage is not, engines give all ranks the same. `unique`: items
    are written, so none may be named twice.
    """
    known = {component.kind for stage in manifest.stages for component in stage.components}
    unknown = sorted(indices.keys() - known)
    if unknown:
        return f"{unknown[0]}: not a kind of its state, which has {', '.join(sorted(known))}"
    at = 0
    for component in (c for stage in manifest.stages if stage.pp_rank == pp for c in stage.components):
        here = regions[at : at + len(component.entries)]
        at += len(component.entries)
        fault = _ids_fault(component, here, indices.get(component.kind), unique) if here else ""
        if fault:
            return f"{component.kind}: {fault}"
    return ""


def _ids_fault(component: Component, regions: Sequence[Region], ids: NDArray[np.int64] | None, unique: bool) -> str:
    if ids is None:
        return "no ids were given; an empty list says that there are none"
    if component.index_space in SINGLE and len(ids) != 1:
        return f"{len(ids)} ids, exactly one {component.index_space} is needed"
    items = min(region.items for region in regions)
    bad = ids[(ids < 0) | (ids >= items)]
    if len(bad):
        return f"id {int(bad[0])}, there are {items} items"
    if unique and len(ids) > 1:
        ordered = np.sort(ids)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            return f"id {int(twice[0])} is there more than once"
    return ""


def length_fault(part: Part, ours: Indices, theirs: Indices) -> str:
    """Why two sides' id lists do not belong together; empty where they do. `ours` are prefill's."""
    for kind in part.kinds:
        here, there = len(ours.get(kind, ())), len(theirs.get(kind, ()))
        if here != there:
            return f"{kind}: {here} ids on prefill, {there} on decode"
    return ""


def index_fault(leg: "Leg", indices: Indices) -> Failure | None:
    """PD4016, PD4020, PD4021: why a leg cannot be served, or what is wrong with its id lists, before a byte moves."""
    me, hello = leg.link.me, leg.link.hello
    assert hello is not None
    fault = asked_fault(me.copier.can_copy, leg.ways, leg.verify)
    if fault:
        return Failure("PD4016", f"room {leg.room}: {fault}", "prefill")
    sides: tuple[tuple[Side, Manifest, int, tuple[Region, ...], Indices], ...] = (
        ("prefill", leg.link.pair_plan.prefill, me.rank.pp, me.regions, indices),
        ("decode", leg.link.pair_plan.decode, hello.rank.pp, hello.regions, leg.indices),
    )
    for side, manifest, pp, regions, ids in sides:
        fault = own_fault(manifest, pp, regions, ids, unique=side == "decode")
        if fault:
            return Failure("PD4021", f"room {leg.room}: {side} {fault}", side)
    fault = length_fault(leg.part, indices, leg.indices)
    if fault:
        return Failure("PD4020", f"room {leg.room}: {fault}", "prefill")
    return None
