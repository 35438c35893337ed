"""`--prove`: the plan followed byte by byte, and what an engine's flat slices would corrupt, shown in numbers.

The only part of a check that needs numpy.
"""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from pdctl_transfer.errors import PlanError
from pdctl_transfer.plan import Damage, Fault, flat_damage, make_plan, prove
from pdctl_transfer.rules import Evidence, Finding, Outcome, Pair

SHOWN = 6


def proved(pair: Pair, outcomes: Iterable[Outcome]) -> Iterator[Outcome]:
    """The outcomes of the rules, PD1016 with its damage, and then the proof (PD1024) or why there is none."""
    refused = None
    for outcome in outcomes:
        if isinstance(outcome, Finding) and outcome.code == "PD1021":
            refused = "a manifest contradicts itself (PD1021)"
        if isinstance(outcome, Finding) and outcome.code == "PD1016":
            damage = [
                Evidence("flat slices", _damaged(one)) for one in _grouped(flat_damage(pair.prefill, pair.decode))
            ]
            outcome = structs.replace(outcome, evidence=(*outcome.evidence, *damage))
        yield outcome
    if refused is None:
        try:
            plan = make_plan(pair.prefill, pair.decode)
        except PlanError as error:
            refused = f"no plan: {error.message} ({error.code})"
    if refused is not None:
        yield pair.skipped("prove", refused)
        return
    proof = prove(plan, pair.prefill, pair.decode)
    if proof.faults:
        evidence = [Evidence("proof", _fault(fault)) for fault in proof.faults[:SHOWN]]
        yield pair.finding("PD1024", evidence, faults=len(proof.faults), first=_fault(proof.faults[0]))
    else:
        yield pair.held("prove", f"{proof.bytes} bytes of {proof.items} items, each written once, from its right place")


def _grouped(damages: Sequence[Damage]) -> Iterator[tuple[Damage, int]]:
    """Equal damage of many layers once, with the number of layers."""
    counts: dict[Damage, int] = {}
    for damage in damages:
        same = structs.replace(damage, layer=None, n=0)
        counts[same] = counts.get(same, 0) + 1
    yield from counts.items()


def _damaged(damage_of_layers: tuple[Damage, int]) -> str:
    damage, layers = damage_of_layers
    text = (
        f"{damage.kind} {damage.tensor}: {damage.wrong} of {damage.channels} channels wrong in each of {layers} layers"
    )
    if damage.past_end:
        text += f"; a copy runs {damage.past_end} bytes past the item, into the next request's slot"
    if damage.read_past:
        text += f"; a copy reads {damage.read_past} bytes past the prefill item"
    return text


def _fault(fault: Fault) -> str:
    source = f" from prefill pp {fault.source.pp} tp {fault.source.tp}" if fault.source else ""
    place = f"{fault.kind} layer {fault.layer} {fault.tensor} of decode pp {fault.rank.pp} tp {fault.rank.tp}"
    return f"{place}: {fault.bytes} bytes {fault.what}{source}, at [{fault.start}, {fault.stop})"
