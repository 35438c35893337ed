"""PD1007: every kind of state and every decode entry needs a source, and every kind that prefill holds a place.

A draft's entries on decode alone are no fault: decode fills them itself. A stage without a layer of some kind is none
either, as long as another stage of the same side has it.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.layout.pairing import Problem
from pdctl_transfer.rules.ngram import is_ngram
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed


def check_missing(pair: Pair) -> Iterator[Outcome]:
    """Whole kinds first; then the entries of kinds that both sides have."""
    wanting = [p for p in pair.pairing.of("no_source", "no_partner") if not p.draft and not is_ngram(p)]
    counts = {role: _counts(side.manifest) for role, side in pair.sides}
    found = False
    for kind in dict.fromkeys(problem.kind for problem in wanting):
        problems = [problem for problem in wanting if problem.kind == kind]
        has = problems[0].side
        lacks: Role = "decode" if has == "prefill" else "prefill"
        if kind not in counts[lacks]:
            found = True
            what = f"{kind} is on {has} ({counts[has][kind]} entries), {lacks} has none"
            evidence = [side.said(f"{kind}: {counts[role].get(kind, 0)} entries") for role, side in pair.sides]
            yield pair.finding("PD1007", evidence, what=what)
        else:
            yield from _sourceless(pair, kind, [p for p in problems if p.reason == "no_source"])
            found = found or any(p.reason == "no_source" for p in problems)
    if not found:
        yield pair.held("missing", f"{listed(counts['decode'])}: every decode entry has a source")


def _sourceless(pair: Pair, kind: str, problems: list[Problem]) -> Iterator[Outcome]:
    if problems:
        verb = "has" if len(problems) == 1 else "have"
        what = f"{kind}: decode's {entries_listed(problems)} {verb} no source on prefill"
        yield pair.finding("PD1007", [pair.decode_side.said(problems[0].text)], what=what)


def entries_listed(problems: list[Problem]) -> str:
    """`layer 3 k, layer 3 v and 12 more`."""
    return listed(f"layer {p.at.entry.layer} {p.at.entry.tensor}" for p in problems if p.at is not None)


def _counts(manifest: Manifest) -> dict[str, int]:
    """Entries a kind, over all stages; kinds without entries left out."""
    counts: dict[str, int] = {}
    for component in components(manifest):
        if component.entries:
            counts[component.kind] = counts.get(component.kind, 0) + len(component.entries)
    return counts
