"""PD1004: every split must give whole heads to ranks, and rank counts must divide where the engine pairs by division.

SGLang maps ranks by floor division and checks nothing (6 against 4 is not refused, it sends wrong heads); vLLM needs it
too. The reference engine plans each copy, so any two counts pair. A Mamba2 state whose B and C groups are several
and not a multiple of the rank count has a layout, but SGLang does not start with it.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.algebra import divides, split_faults
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.consistent import said
from pdctl_transfer.rules.outcome import Finding, Held, Outcome
from pdctl_transfer.rules.pair import Pair, components, listed

NEED_DIVIDING = frozenset({"sglang", "vllm", "vllm-ascend"})


def check_splits(pair: Pair) -> Iterator[Outcome]:
    """Each side's own splits, then the two rank counts."""
    for role, side in pair.sides:
        tp = side.manifest.parallel.attn_tp
        found = split_faults(side.manifest)
        unstartable = list(_unstartable(side.manifest))
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            params = {"what": f"{role}: {found[0].found} heads do not split over attention TP {tp}{more}"}
            evidence = tuple(side.said(said(fault)) for fault in found[:4])
            yield Finding("PD1004", side.name, (side.evidence("attn_tp"), *evidence), params)
        elif unstartable:
            what = f"{role}: SGLang does not start with {listed(unstartable)} over attention TP {tp}"
            yield Finding("PD1004", side.name, (side.evidence("attn_tp"),), {"what": what})
        else:
            yield Held("splits", side.name, f"every split divides over attention TP {tp}")
    small, large = sorted(pair.tp)
    if not pair.engines & NEED_DIVIDING or (small >= 1 and large % small == 0):
        return
    what = f"attention TP {pair.tp[0]} → {pair.tp[1]}: neither divides the other"
    yield pair.finding("PD1004", pair.evidence("attn_tp"), what=what)


def _unstartable(manifest: Manifest) -> Iterator[str]:
    """State groups, several of them, that SGLang's Mamba2 would have to replicate and does not."""
    tp = manifest.parallel.attn_tp
    if manifest.engine.name != "sglang" or tp < 1:
        return
    for component in components(manifest):
        for entry in component.entries:
            if entry.engine_slices == "flat" and entry.sharding == "split":
                for group in entry.groups[1:]:
                    if group.heads > 1 and group.heads % tp and divides(group.heads, tp):
                        yield f"{group.heads} groups in {component.kind} {entry.tensor}"
