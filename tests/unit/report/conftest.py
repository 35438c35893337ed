"""One report with everything in it: a refused pair, an ignored code, information, an unknown pair, a host's finding."""

import pytest

from pdctl.report import Judgement, Report, make_report
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Skipped


@pytest.fixture
def report() -> Report:
    """Four judgements over two prefill and four decode engines, and one finding that concerns no pair."""
    pages = Finding(
        "PD1001",
        "prefill → small",
        (Evidence("fleet.yaml:8", "page_size: 64"), Evidence("fleet.yaml:14", "page_size: 32")),
        {"prefill": 64, "decode": 32},
    )
    versions = Finding(
        "PD1014",
        "prefill → old",
        (Evidence("fleet.yaml:9", "engine 0.5.23"), Evidence("fleet.yaml:20", "engine 0.5.22")),
        {"what": "sglang 0.5.23 on prefill, 0.5.22 on decode"},
    )
    drafts = Finding("PD1015", "prefill → spec", (), {"what": "only decode speculates (EAGLE)"})
    same = Held("page_size", "prefill → spec", "64 on both sides")
    prefills = ("prefill-0", "prefill-1")
    return make_report(
        "check",
        [Finding("PD1021", "lost.json", (Evidence("lost.json", "a"),), {"side": "lost.json", "what": "page_size 0"})],
        [
            Judgement("prefill", "spec", prefills, ("spec-0",), (same, drafts), "KV: TP 4 → 1 on mooncake"),
            Judgement("prefill", "small", prefills, ("small-0", "small-1"), (pages,)),
            Judgement("prefill", "old", prefills, ("old-0",), (versions,)),
            Judgement(
                "prefill", "mute", prefills, ("mute-0",), (Skipped("live", "mute", "no answer on port 1", needed=True),)
            ),
        ],
        ignore={"PD1014"},
        notes=["the platform is assumed to be hopper"],
        seconds=0.08,
    )
