"""What a report counts, merges and concludes."""

import msgspec
import pytest

from pdctl.report import Judgement, Report, exit_status, make_report
from pdctl.report.build import spans
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Skipped


def _pages(subject: str, *evidence: Evidence) -> Finding:
    return Finding("PD1001", subject, evidence, {"prefill": 64, "decode": 32})


def test_verdicts_and_codes_of_every_pair(report: Report) -> None:
    """Each replica is listed, with the verdict of its kind."""
    verdicts = {pair.subject: (pair.verdict, pair.codes) for pair in report.pairs}
    assert len(verdicts) == 10
    assert verdicts["prefill-1 → spec-0"] == ("fits", ("PD1015",))
    assert verdicts["prefill-0 → small-1"] == ("refused", ("PD1001",))
    assert verdicts["prefill-0 → old-0"] == ("fits", ("PD1014",))
    assert verdicts["prefill-0 → mute-0"] == ("unknown", ())


def test_one_bad_pool_is_one_finding(report: Report) -> None:
    """Four refused pairs have one culprit, and it is said once, over all of them."""
    [finding] = [finding for finding in report.findings if finding.code == "PD1001"]
    assert finding.subject == "prefill-0…1 → small-0…1"
    assert len(finding.subjects) == 4


def test_one_decode_pool_against_many_prefill_pools_is_one_finding() -> None:
    """Told apart by culprit, not by observer; every prefill's evidence is kept."""
    decode = Evidence("fleet.yaml:30", "page_size: 32")
    judgements = [
        Judgement(
            f"p{i}", "d", (f"p{i}-0",), ("d-0",), (_pages(f"p{i} → d", Evidence(f"f:{i}", "page_size: 64"), decode),)
        )
        for i in range(12)
    ]
    report = make_report("check", judgements=judgements)
    assert [finding.code for finding in report.findings] == ["PD1001"]
    assert len(report.findings[0].evidence) == 13
    assert report.summary.error == 1


def test_two_hosts_with_the_same_fault_are_two_findings() -> None:
    """Outside pairs the subject is the culprit."""
    report = make_report("preflight", [Finding("PD1014", host, (), {"what": "x"}) for host in ("a", "b")])
    assert [finding.subject for finding in report.findings] == ["a", "b"]


def test_ignored_is_demoted_counted_apart_and_still_there() -> None:
    """An ignored error neither fails nor vanishes, and does not fail under --fail-on warning either."""
    judged = [Judgement("p", "d", ("p-0",), ("d-0",), (_pages("p → d"),))]
    report = make_report("check", judgements=judged, ignore={"PD1001"})
    assert (report.findings[0].ignored, report.findings[0].severity) == (True, "warning")
    assert (report.summary.error, report.summary.warning, report.summary.ignored) == (0, 0, 1)
    assert report.pairs[0].verdict == "fits with warnings"
    assert (exit_status(report), exit_status(report, "warning")) == (0, 0)


@pytest.mark.parametrize(
    ("outcome", "plain", "strict"),
    [
        (Held("page_size", "p → d", "64"), 0, 0),
        (Finding("PD1015", "p → d", (), {"what": "x"}), 0, 0),
        (Finding("PD1014", "p → d", (), {"what": "x"}), 0, 4),
        (Finding("PD1014", "p → d", (), {"what": "x"}, "error"), 3, 3),
        (Skipped("kv_layout", "p → d", "neither side states one"), 0, 0),
        (Skipped("live", "p → d", "no answer", needed=True), 3, 3),
    ],
)
def test_exit_status(outcome: Held | Finding | Skipped, plain: int, strict: int) -> None:
    """The contract's statuses; what was needed and not read is never a pass."""
    report = make_report("check", judgements=[Judgement("p", "d", ("p-0",), ("d-0",), (outcome,))])
    assert (exit_status(report), exit_status(report, "warning")) == (plain, strict)
    assert report.ok == (plain == 0)


def test_errors_come_first(report: Report) -> None:
    """A reader who stops after a screen has seen the errors."""
    severities = [finding.severity for finding in report.findings]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)


def test_spans() -> None:
    """Runs are shortened only where the numbers follow each other."""
    assert spans(["a-0", "a-1", "a-2", "b-0", "a-5"]) == "a-0…2, b-0, a-5"
    assert spans(["x", "x", "y.json"]) == "x, x, y.json"


def test_values_are_immutable(report: Report) -> None:
    """Renderers share one report."""
    with pytest.raises(AttributeError):
        report.ok = True  # type: ignore[misc]
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_report_tells_no_secret() -> None:
    """Evidence quotes the words of a fleet file, and reports of CI are read by many."""
    evidence = (Evidence("f.yaml:7", "--api-key=S3"), Evidence("f.yaml:8", "env: HF_TOKEN='S3'"))
    report = make_report("check", [Finding("PD1001", "s", evidence, {"prefill": "api_key='S3'", "decode": 2})])
    assert "S3" not in str(report)
    assert [one.source for one in report.findings[0].evidence] == ["f.yaml:7", "f.yaml:8"]
