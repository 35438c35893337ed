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


class JudgedFor(Struct, frozen=True):
    """An engine release that verdicts hold for: `name` (`SGLang 0.5.23`), and what states it, if anything does.

    `stated` is None where no version is told; where it is not `version`, it lies outside of what pdctl knows.
    """

    engine: str
    name: str
    version: str | None
    stated: str | None
    by: str
    sources: tuple[str, ...]
    pools: tuple[str, ...]

    @property
    def why(self) -> str:
        """`fleet.yaml:12 image lmsysorg/sglang:v0.5.16`, and what is wrong with it."""
        said = " ".join(filter(None, (", ".join(self.sources), self.by)))
        if self.stated is None:
            return f"{said} tells none" if self.by else "no version is stated"
        return said if self.stated == self.version else f"{said} says {self.stated}, which is not known"


class Report(Struct, frozen=True):
    """What a command found. The first fields are the contract's; those from `held` on came later."""

    command: str
    ok: bool
    summary: Summary
    pairs: tuple[PairVerdict, ...] = ()
    findings: tuple[ReportedFinding, ...] = ()
    skipped: tuple[SkippedRule, ...] = ()
    held: tuple[HeldRule, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    judged_for: tuple[JudgedFor, ...] = ()
    schema: str = field(default=SCHEMA)


def exit_status(report: Report, fail_on: Literal["error", "warning"] = "error") -> int:
    """0 all held · 3 an error, or a pair that is refused or unknown · 4 only warnings, where those are to fail."""
    if not report.ok:
        return 3
    if fail_on == "warning" and report.summary.warning:
        return 4
    return 0
