"""Reports, `pdctl.report/v1`: what `check`, `preflight`, `diagnose` and `verify` say, in five forms."""

from pdctl.report.build import Judgement, make_report
from pdctl.report.model import (
    JudgedFor,
    PairVerdict,
    Report,
    ReportedFinding,
    SkippedRule,
    Summary,
    Verdict,
    exit_status,
)
from pdctl.report.render import FORMATS, Format, emit, render

__all__ = [
    "FORMATS",
    "Format",
    "JudgedFor",
    "Judgement",
    "PairVerdict",
    "Report",
    "ReportedFinding",
    "SkippedRule",
    "Summary",
    "Verdict",
    "emit",
    "exit_status",
    "make_report",
    "render",
]
