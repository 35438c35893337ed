"""PD1005: SGLang's DFLASH and DSpark drafts are sent rank to rank, so both sides need one TP (tp, not attention TP).

With MLA, DSpark also takes prefill ranks that context parallelism adds: prefill CP × TP may equal decode's TP.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair

RANK_TO_RANK = frozenset({"DFLASH", "DSPARK"})


def check_draft_tp(pair: Pair) -> Iterator[Outcome]:
    """Only where both sides speculate with such an algorithm."""
    if pair.engines != {"sglang"}:
        return
    algorithms = {_algorithm(side.manifest) for _, side in pair.sides}
    if len(algorithms) > 1 or not algorithms <= RANK_TO_RANK:
        return
    (algorithm,) = algorithms
    prefill, decode = _ranks(pair.prefill), _ranks(pair.decode)
    if prefill == decode:
        yield pair.held("draft_tp", f"{algorithm}: TP {prefill} on both sides")
        return
    yield pair.finding(
        "PD1005",
        pair.evidence("attn_tp", "speculative"),
        prefill_tp=pair.tp[0],
        decode_tp=pair.tp[1],
        engine="sglang",
        backend=pair.backend,
        states=f"{algorithm} drafts need one TP, found {prefill} and {decode}",
    )


def _algorithm(manifest: Manifest) -> str:
    return str((manifest.speculative or {}).get("algorithm", "")).upper()


def _ranks(manifest: Manifest) -> int:
    parallel = manifest.parallel
    return parallel.attn_tp * parallel.attn_cp * parallel.dp
