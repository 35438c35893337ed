"""The report `pdctl.report/v1` as immutable values, and the exit status that it means."""

from typing import Final, Literal

from msgspec import Struct, field

from pdctl_transfer.rules.outcome import Evidence, Held, Severity

SCHEMA: Final = "pdctl.report/v1"

Verdict = Literal["fits", "fits with warnings", "refused", "unknown"]


class Summary(Struct, frozen=True):
    """Counts. An ignored finding counts under `ignored` alone, so it fails nothing and stays in sight."""

    error: int = 0
    warning: int = 0
    info: int = 0
    skipped: int = 0
    ignored: int = 0
    held: int = 0


class PairVerdict(Struct, frozen=True):
    """The verdict on one prefill and one decode engine; `saw` says in a line what it rests on."""

    prefill: str
    decode: str
    verdict: Verdict
    codes: tuple[str, ...]
    saw: str = ""

    @property
    def subject(self) -> str:
        """How findings name this pair."""
        return f"{self.prefill} → {self.decode}"


class ReportedFinding(Struct, frozen=True):
    """One culprit, in words. `subject` is short for all of `subjects`; an ignored one is shown one severity lower."""

    code: str
    severity: Severity
    title: str
    subject: str
    ignored: bool
    message: str
    evidence: tuple[Evidence, ...]
    why: str
    action: str
    docs: str
    subjects: tuple[str, ...] = ()


class SkippedRule(Struct, frozen=True):
    """A rule that could not be judged, and why."""

    rule: str
    subject: str
    reason: str


class HeldRule(Struct, frozen=True):
    """A rule that held, and what it saw."""

    rule: str
    subject: str
    saw: str

    @classmethod
    def of(cls, held: Held, subject: str) -> "HeldRule":
        """The same, under the name that the report gives its subject."""
        return cls(held.rule, subject, held.saw)


class Report(Struct, frozen=True):
    """What a command found. The first fields are the contract's; `held`, `notes` and `seconds` came later."""

    command: str
    ok: bool
    summary: Summary
    pairs: tuple[PairVerdict, ...] = ()
    findings: tuple[ReportedFinding, ...] = ()
    skipped: tuple[SkippedRule, ...] = ()
    held: tuple[HeldRule, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    schema: str = field(default=SCHEMA)


def exit_status(report: Report, fail_on: Literal["error", "warning"] = "error") -> int:
    """0 all held · 3 an error, or a pair that is refused or unknown · 4 only warnings, where those are to fail."""
    if not report.ok:
        return 3
    if fail_on == "warning" and report.summary.warning:
        return 4
    return 0
