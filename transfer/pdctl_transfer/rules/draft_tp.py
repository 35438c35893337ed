"""PD1005: SGLang's DFLASH and DSpark drafts are sent rank to rank, so both sides need as many of them.

DSpark compares attention TP; with MLA and a context-parallel prefill, prefill TP × CP may also be decode's TP. DFLASH
compares the ranks that share a layer, attention TP × CP.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import Manifest, Parallel
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair
from pdctl_transfer.rules.unequal_tp import is_mla

RANK_TO_RANK = frozenset({"DFLASH", "DSPARK"})


def check_draft_tp(pair: Pair) -> Iterator[Outcome]:
    """Only where both sides speculate with such an algorithm."""
    algorithms = {_algorithm(side.manifest) for _, side in pair.sides}
    if pair.engines != {"sglang"} or len(algorithms) > 1 or not algorithms <= RANK_TO_RANK:
        return
    (algorithm,) = algorithms
    prefill, decode = pair.prefill.parallel, pair.decode.parallel
    if algorithm == "DFLASH":
        counts = _ranks(prefill), _ranks(decode)
    elif is_mla(pair) and prefill.attn_cp > 1 and decode.attn_cp == 1 and decode.attn_tp == _ranks(prefill):
        counts = _ranks(prefill), decode.attn_tp
    else:
        counts = pair.tp
    if counts[0] == counts[1]:
        yield pair.held("draft_tp", f"{algorithm}: {counts[0]} ranks on both sides")
        return
    yield pair.finding(
        "PD1005",
        pair.evidence("attn_tp", "attn_cp", "speculative"),
        "error",
        prefill_tp=pair.tp[0],
        decode_tp=pair.tp[1],
        engine="sglang",
        backend=pair.backend,
        states=f"{algorithm} drafts need as many ranks on both sides, found {counts[0]} and {counts[1]}",
    )


def _algorithm(manifest: Manifest) -> str:
    return str((manifest.speculative or {}).get("algorithm", "")).upper()


def _ranks(parallel: Parallel) -> int:
    return parallel.attn_tp * parallel.attn_cp
