"""Every prefill group against every decode group: judged once, said for every pair of members."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from pdctl.check.drafts import check_drafts
from pdctl.check.flag_rules import judge_flags
from pdctl.check.groups import Group
from pdctl.check.token_batches import check_token_batches
from pdctl.check.ways import way_of
from pdctl.report import Judgement
from pdctl_transfer.rules import Evidence, Finding, Outcome, Pair, judge, judge_settings
from pdctl_transfer.rules.pair import backend_name, components


def judgements(groups: Sequence[Group], backend: str | None, prove: bool) -> Iterator[Judgement]:
    """In the order of the groups."""
    for prefill in (group for group in groups if group.role == "prefill"):
        for decode in (group for group in groups if group.role == "decode"):
            yield _judgement(prefill, decode, backend, prove)


def _judgement(prefill: Group, decode: Group, backend: str | None, prove: bool) -> Judgement:
    members = (prefill.members, decode.members)
    if prefill.blocked or decode.blocked:
        return Judgement(prefill.name, decode.name, *members, (*prefill.blocked, *decode.blocked))
    pair, ways = way_of(Pair(prefill.side, decode.side, backend), prefill, decode)
    if prefill.unknown or decode.unknown:
        reasons = dict.fromkeys(group.unknown for group in (prefill, decode) if group.unknown)
        unknown = pair.skipped("layout", f"not known (PD1034): {'; '.join(map(str, reasons))}", needed=True)
        outcomes: tuple[Outcome, ...] = (unknown, *ways, *judge_settings(pair), *judge_flags(prefill, decode))
        outcomes = tuple(_everywhere(outcome, prefill, decode) for outcome in outcomes)
        return Judgement(prefill.name, decode.name, *members, outcomes)
    outcomes = (
        *ways,
        *judge(pair),
        *check_token_batches(pair, prefill, decode),
        *check_drafts(pair, prefill.draft, decode.draft),
        *judge_flags(prefill, decode),
    )
    if prove:
        from pdctl.check.proofs import proved

        outcomes = tuple(proved(pair, outcomes))
    outcomes = tuple(_everywhere(outcome, prefill, decode) for outcome in outcomes)
    return Judgement(prefill.name, decode.name, *members, outcomes, saw(pair))


def _everywhere(outcome: Outcome, *groups: Group) -> Outcome:
    """A finding with the origins of its values in all pools that have them, not in the first one only."""
    if not isinstance(outcome, Finding) or all(len(group.sides) == 1 for group in groups):
        return outcome
    evidence: list[Evidence] = []
    for one in outcome.evidence:
        evidence += [one, *(other for group in groups for other in group.same_elsewhere(one))]
    return structs.replace(outcome, evidence=tuple(dict.fromkeys(evidence)))


def saw(pair: Pair) -> str:
    """What a pair that fits moves, in a line: `kv, mamba: TP 4 → 1 on mooncake, 1 writer in 4 elected per entry`."""
    kinds = dict.fromkeys(part.kind for part in components(pair.prefill, pair.decode) if part.entries)
    (src, dst), stages = pair.tp, (len(pair.prefill.stages), len(pair.decode.stages))
    parts = [f"TP {src} → {dst}" if src != dst else f"TP {src}"]
    if stages != (1, 1):
        parts.append(f"PP {stages[0]} → {stages[1]}")
    over = backend_name(pair.prefill.transfer.backend)
    parts.append(f"by the core over {over}" if pair.by_core else f"on {pair.backend}")
    parts[-2:] = [" ".join(parts[-2:])]
    text = f"{', '.join(kinds) or 'nothing'}: {', '.join(parts)}"
    copied = any(entry.sharding == "replicated" for part in components(pair.prefill) for entry in part.entries)
    if copied and src > dst and dst and src % dst == 0:
        text += f", 1 writer in {src // dst} elected per replicated entry"
    return text
