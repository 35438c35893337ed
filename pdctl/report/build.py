"""Outcomes of rules → a report: words from the catalog, one finding a culprit, a verdict a pair, ignored codes demoted.

Equal replicas are judged once, as a `Judgement`, and listed all. Findings of several pairs that say the same are one
finding over all of them: a decode pool with the wrong page size is one culprit, however many prefill engines it meets.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import Struct

from pdctl.catalog import Words, words
from pdctl.redact import hide
from pdctl.report.model import HeldRule, JudgedFor, PairVerdict, Report, ReportedFinding, SkippedRule, Summary, Verdict
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Severity, Skipped

#: An ignored finding is shown one severity lower.
DEMOTED: Mapping[Severity, Severity] = {"error": "warning", "warning": "info", "info": "info"}

_RANK: Mapping[Severity, int] = {"error": 0, "warning": 1, "info": 2}


class Judgement(Struct, frozen=True):
    """Outcomes that hold for every pair of these equal prefill and these equal decode engines.

    Outcomes name as their subject `prefill`, `decode` or the pair `prefill → decode`; the report names the members.
    """

    prefill: str
    decode: str
    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    saw: str = ""

    @property
    def subject(self) -> str:
        """What rules call the pair."""
        return f"{self.prefill} → {self.decode}"

    def is_pair(self, subject: str) -> bool:
        """Whether outcomes with this subject are about the pair, not about one side."""
        return subject == self.subject and bool(self.prefills)

    def label(self, subject: str) -> str:
        """A subject of these outcomes, in the names of the members, short."""
        if subject == self.prefill:
            return spans(self.prefills)
        if subject == self.decode:
            return spans(self.decodes)
        return f"{spans(self.prefills)} → {spans(self.decodes)}" if subject == self.subject else subject

    def members(self, subject: str) -> tuple[str, ...]:
        """All that a subject of these outcomes stands for."""
        if subject == self.prefill:
            return self.prefills
        if subject == self.decode:
            return self.decodes
        if subject == self.subject:
            return tuple(f"{p} → {d}" for p in self.prefills for d in self.decodes)
        return (subject,)


class _Subjects:
    """What an outcome of several judgements is about: each subject, and all of them in short."""

    def __init__(self) -> None:
        self.members: dict[str, None] = {}
        self._labels: dict[str, None] = {}
        self._prefills: dict[str, None] = {}
        self._decodes: dict[str, None] = {}

    def add(self, judgement: Judgement, subject: str) -> None:
        self.members.update(dict.fromkeys(judgement.members(subject)))
        self._labels[judgement.label(subject)] = None
        if judgement.is_pair(subject):
            self._prefills.update(dict.fromkeys(judgement.prefills))
            self._decodes.update(dict.fromkeys(judgement.decodes))

    @property
    def label(self) -> str:
        """Every prefill with every decode, where it is that; a list of subjects otherwise."""
        if self._prefills and len(self._prefills) * len(self._decodes) == len(self.members):
            return f"{spans(list(self._prefills))} → {spans(list(self._decodes))}"
        return ", ".join(self._labels)


class _Merged(Struct):
    """One culprit while outcomes are gathered."""

    finding: Finding
    words: Words
    subjects: _Subjects
    evidence: dict[Evidence, None]


def make_report(
    command: str,
    outcomes: Iterable[Outcome] = (),
    judgements: Sequence[Judgement] = (),
    *,
    ignore: Collection[str] = (),
    notes: Sequence[str] = (),
    seconds: float | None = None,
    judged_for: tuple[JudgedFor, ...] = (),
) -> Report:
    """The report of `outcomes`, which concern no pair, and of `judgements`. KeyError for a code without words."""
    alone = Judgement("", "", (), (), tuple(outcomes))
    merged: dict[tuple[object, ...], _Merged] = {}
    held: list[HeldRule] = []
    skips: dict[tuple[str, str], _Subjects] = {}
    for judgement in (alone, *judgements):
        for outcome in judgement.outcomes:
            match outcome:
                case Finding():
                    _merge(merged, judgement, outcome)
                case Held():
                    held.append(HeldRule.of(outcome, judgement.label(outcome.subject)))
                case Skipped():
                    skips.setdefault((outcome.rule, outcome.reason), _Subjects()).add(judgement, outcome.subject)
    findings = sorted((_reported(one, ignore) for one in merged.values()), key=lambda f: (_RANK[f.severity], f.code))
    skipped = tuple(SkippedRule(rule, subjects.label, reason) for (rule, reason), subjects in skips.items())
    pairs = tuple(pair for judgement in judgements for pair in _verdicts(judgement, ignore))
    live = [finding.severity for finding in findings if not finding.ignored]
    summary = Summary(
        error=live.count("error"),
        warning=live.count("warning"),
        info=live.count("info"),
        skipped=len(skipped),
        ignored=len(findings) - len(live),
        held=len(held),
    )
    ok = summary.error == 0 and all(pair.verdict not in ("refused", "unknown") for pair in pairs)
    unique_notes = tuple(dict.fromkeys(notes))
    return Report(command, ok, summary, pairs, tuple(findings), skipped, tuple(held), unique_notes, seconds, judged_for)


def _merge(merged: dict[tuple[object, ...], _Merged], judgement: Judgement, finding: Finding) -> None:
    culprit = None if judgement.is_pair(finding.subject) else finding.subject
    key = (finding.code, finding.severity, repr(sorted(finding.params.items())), culprit)
    one = merged.get(key)
    if one is None:
        one = merged[key] = _Merged(finding, words(finding), _Subjects(), {})
    one.subjects.add(judgement, finding.subject)
    one.evidence.update(dict.fromkeys(finding.evidence))


def _reported(one: _Merged, ignore: Collection[str]) -> ReportedFinding:
    ignored = one.finding.code in ignore
    return ReportedFinding(
        code=one.finding.code,
        severity=DEMOTED[one.words.severity] if ignored else one.words.severity,
        title=one.words.title,
        subject=one.subjects.label,
        ignored=ignored,
        message=hide(one.words.message),
        evidence=tuple(Evidence(each.source, hide(each.text)) for each in one.evidence),
        why=one.words.why,
        action=one.words.action,
        docs=one.words.docs,
        subjects=tuple(one.subjects.members),
    )


def _verdicts(judgement: Judgement, ignore: Collection[str]) -> Iterator[PairVerdict]:
    findings = [outcome for outcome in judgement.outcomes if isinstance(outcome, Finding)]
    codes = tuple(sorted({finding.code for finding in findings}))
    verdict = _verdict(judgement.outcomes, ignore)
    for prefill in judgement.prefills:
        for decode in judgement.decodes:
            yield PairVerdict(prefill, decode, verdict, codes, judgement.saw)


def _verdict(outcomes: Iterable[Outcome], ignore: Collection[str]) -> Verdict:
    severities: set[Severity] = set()
    unknown = False
    for outcome in outcomes:
        match outcome:
            case Finding():
                severity = words(outcome).severity
                severities.add(DEMOTED[severity] if outcome.code in ignore else severity)
            case Skipped(needed=True):
                unknown = True
    if "error" in severities:
        return "refused"
    if unknown:
        return "unknown"
    return "fits with warnings" if "warning" in severities else "fits"


def spans(names: Sequence[str]) -> str:
    """`a-0, a-1, a-2, b-0` → `a-0…2, b-0`: runs of numbered names, in the order given."""
    numbered = [re.fullmatch(r"(.*?)(\d+)", name) for name in names]
    keys = [(m[1], int(m[2]) - i) if m else (names[i], ~i) for i, m in enumerate(numbered)]
    parts = []
    for _, run in groupby(range(len(names)), key=keys.__getitem__):
        first, *rest = list(run)
        last = numbered[rest[-1]] if rest else None
        parts.append(f"{names[first]}…{last[2]}" if last else names[first])
    return ", ".join(parts)
