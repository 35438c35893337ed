"""PD1016: a state that concatenates several parts must be cut part by part across unequal attention TP.

SGLang declares no sub-blocks for Mamba2's conv state `cat(x, B, C)`: its flat slice straddles them, and where B and C
are replicated the copy runs past the item into the next request's slot.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed


def check_flat_slices(pair: Pair) -> Iterator[Outcome]:
    """One finding a kind and tensor."""
    flat: dict[tuple[str, str], list[object]] = {}
    for component in components(pair.prefill, pair.decode):
        for entry in component.entries:
            if entry.engine_slices == "flat" and len(entry.groups) > 1 and entry.sharding == "split":
                flat.setdefault((component.kind, entry.tensor), []).append(entry.layer)
    names = listed(f"{kind} {tensor}" for kind, tensor in flat)
    if flat and pair.unequal_tp and pair.by_core:
        yield pair.held("flat_slices", f"{names} is cut part by part: the transfer core cuts by the layout")
        return
    if flat and not pair.unequal_tp:
        yield pair.held("flat_slices", f"{names} is cut flat, and attention TP is equal")
    for (kind, tensor), layers in flat.items() if pair.unequal_tp else ():
        what = f"{kind} {tensor} (layers {listed(layers)}) is cut flat at attention TP {pair.tp[0]} → {pair.tp[1]}"
        yield pair.finding("PD1016", pair.evidence("attn_tp"), what=what)
