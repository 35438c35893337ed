"""PD1012: pairing by position is sound only between single stages with equally many entries.

SGLang's sliding-window pools report start layer 0 on every stage and pair by position even where ids could be given:
with more than one prefill stage, stage 2's layers land on stage 1's.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, listed


def check_positions(pair: Pair) -> Iterator[Outcome]:
    """One finding a kind."""
    problems = {problem.kind: problem for problem in pair.pairing.of("engine_position", "position")}
    for problem in problems.values():
        what = f"{problem.kind}: {problem.text}"
        yield pair.finding("PD1012", [*pair.evidence("pp"), pair.prefill_side.said(what)], what=what)
    bare = {e.src.kind for e in pair.pairing.pairs if e.src.entry.layer is None or e.dst.entry.layer is None}
    if bare and not problems:
        yield pair.held(
            "positions", f"{listed(sorted(bare))} paired by position, one stage and equal counts on each side"
        )
