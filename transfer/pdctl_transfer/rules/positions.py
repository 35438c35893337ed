"""PD1012: pairing by position is sound only between single stages with equally many entries, in one order.

SGLang's sliding-window pools report start layer 0 on every stage and pair by position even where ids could be given:
with more than one prefill stage, stage 2's layers land on stage 1's.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, listed


def check_positions(pair: Pair) -> Iterator[Outcome]:
    """One finding for all kinds that the engine pairs by position, one for those whose entries have no ids."""
    # the core pairs by the ids, whatever the engine does
    problems = pair.pairing.of("position") if pair.by_core else pair.pairing.of("engine_position", "position")
    for reason in ("engine_position", "position"):
        found = [problem for problem in problems if problem.reason == reason]
        if found:
            why = found[0].text
            if reason == "engine_position" and len(pair.prefill.stages) > 1:
                why = f"paired by position from {len(pair.prefill.stages)} prefill stages"
            what = f"{listed(p.kind for p in found)}: {why}"
            said = (pair.prefill_side.said(f"{p.kind}: {p.text}") for p in found)
            yield pair.finding("PD1012", [*pair.evidence("pp"), *said], what=what)
    bare = {e.src.kind for e in pair.pairing.pairs if e.src.entry.layer is None or e.dst.entry.layer is None}
    if bare and not problems:
        yield pair.held(
            "positions", f"{listed(sorted(bare))} paired by position, one stage and equal counts on each side"
        )
