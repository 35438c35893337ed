"""PD1009: every prefill entry needs a place on decode. (A whole kind that is missing is PD1007, a draft's PD1015.)"""

from collections.abc import Iterator

from pdctl_transfer.rules.missing import entries_listed
from pdctl_transfer.rules.ngram import is_ngram
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components


def check_partners(pair: Pair) -> Iterator[Outcome]:
    """One finding a kind."""
    held = {part.kind for part in components(pair.decode) if part.entries}
    problems = [p for p in pair.pairing.of("no_partner") if not p.draft and not is_ngram(p) and p.kind in held]
    for kind in dict.fromkeys(problem.kind for problem in problems):
        homeless = [problem for problem in problems if problem.kind == kind]
        verb = "has" if len(homeless) == 1 else "have"
        what = f"{kind}: prefill's {entries_listed(homeless)} {verb} no partner on decode"
        yield pair.finding("PD1009", [pair.prefill_side.said(homeless[0].text)], what=what)
    if not problems:
        yield pair.held("partners", f"{len(pair.pairing.pairs)} entries paired")
