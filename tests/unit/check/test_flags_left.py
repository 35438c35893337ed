"""Flags that touch the pools, the transfer or the layout: each is read, ruled, unknown, or changes no buffer."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pdctl.check.connectors import BESIDE, OFFLOADING
from pdctl.check.flag_rules import context_length, kv_sharding, rank_ranges, refused_flags, same_numbers, without_effect
from pdctl.check.flag_rules.unjudged import SWAPS, SWAPS_SOME
from pdctl.derive.flag_tables import SHAPING
from pdctl.flags import load
from tests.unit.check.test_verdicts import DENSE, HYBRID, MLA, flags, said, verdict

TOUCHES = re.compile(
    r"kv|cache|page|block|disagg|sparse|dcp|context-par|spec|draft|mamba|swa|sliding|shard|parallel|pool|layout|dtype|"
    r"offload|transfer|hybrid|unified|qsa|encoder-only|nnodes"
)
LEFT_ALONE: dict[str, list[str]] = json.loads((Path(__file__).parent / "flags_left_alone.json").read_bytes())
"""Reviewed one by one: sizes of pools, policies, kernels, the host's copies, metrics; they leave each item as it is."""
RULED = {
    *BESIDE,
    *OFFLOADING,
    *(flag for flags_ in context_length.FLAGS.values() for flag in flags_),
    *(flag for flags_ in same_numbers.FLAGS.values() for flag in flags_),
    *rank_ranges.START,
    "--data-parallel-size-local",
    kv_sharding.SHARDING,
    *refused_flags.FLAGS.values(),
    *refused_flags.ALONE,
    refused_flags.ADAPTIVE,
    without_effect.DP_ATTENTION,
    "--nnodes",
    "--disaggregation-ib-device",
    "--disaggregation-bootstrap-port",
}


def _unsaid(engine: str) -> list[str]:
    """First spellings of flags that touch and that nothing is said of."""
    said_of = {*SHAPING[engine], *SWAPS[engine], *SWAPS_SOME[engine], *RULED}
    flags_ = [flag for flag in load(engine).flags if any(TOUCHES.search(name) for name in flag.names)]
    return sorted(flag.names[0] for flag in flags_ if said_of.isdisjoint(flag.names))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_no_flag_that_touches_the_state_is_passed_over(engine: str) -> None:
    """A new table's flag of this kind fails here until somebody has looked what it does."""
    assert _unsaid(engine) == LEFT_ALONE[engine]


@pytest.mark.code("PD1034")
@pytest.mark.parametrize(
    ("head", "config", "words", "unknown"),
    [
        ("sglang mooncake", MLA, ("--enable-dsa-cache-layer-split",), True),
        ("sglang mooncake", DENSE, ("--disaggregation-decode-host-receive-threshold", "0.5"), True),
        ("sglang mooncake", DENSE, ("--disaggregation-decode-host-receive-threshold", "1"), False),
        ("vllm nixl", DENSE, ("--disable-sliding-window",), True),
        ("vllm nixl", DENSE, ("--mamba-block-size", "1024"), False),
        ("vllm nixl", HYBRID, ("--mamba-block-size", "1024"), True),
        ("vllm nixl", MLA, ("--cp-kv-cache-interleave-size", "16"), False),
        ("vllm nixl", MLA, ("--cp-kv-cache-interleave-size", "16", "-dcp", "8"), True),
    ],
)
def test_what_swaps_buffers_unjudged_is_unknown(
    head: str, config: dict[str, Any], words: tuple[str, ...], unknown: bool, tmp_path: Path
) -> None:
    """Where there is something to swap, and the value does not turn it off."""
    report = verdict(tmp_path, head, "attn_tp: 8", f"attn_tp: 8, {flags(*words)}", config)
    assert (report.pairs[0].verdict == "unknown") == unknown
    assert ("PD1034" in said(report)) == unknown


@pytest.mark.code("PD1050")
def test_offloading_by_flags_takes_the_place_of_the_connector(tmp_path: Path) -> None:
    """vLLM writes its own connector over the one that is given: nothing goes from prefill to decode any more."""
    report = verdict(tmp_path, "vllm nixl", flags("--kv-offloading-size", "4"), "", DENSE)
    assert said(report)["PD1050"] == "error"
    lmcache = flags("--kv-offloading-size", "4", "--kv-offloading-backend", "lmcache")
    assert said(verdict(tmp_path, "vllm nixl", lmcache, "", DENSE))["PD1050"] == "warning"


@pytest.mark.code("PD1055")
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (("--enable-linear-replayssm",), True),
        (("--mamba-radix-cache-strategy", "extra_buffer_lazy"), True),
        (("--mamba-radix-cache-strategy", "no_buffer"), False),
    ],
)
def test_what_does_not_go_with_disaggregation(words: tuple[str, ...], refused: bool, tmp_path: Path) -> None:
    report = verdict(tmp_path, "sglang mooncake", "", flags(*words), HYBRID)
    assert ("PD1055" in said(report)) == refused


@pytest.mark.code("PD1015")
def test_vllms_short_flags_for_drafts_are_read(tmp_path: Path) -> None:
    """`--spec-method` and its kin are `--speculative-config` by other names."""
    words = flags("--spec-method", "ngram", "--spec-tokens", "4")
    report = verdict(tmp_path, "vllm nixl", "", words, DENSE)
    [finding] = [one for one in report.findings if one.code == "PD1015"]
    assert (finding.severity, "ngram" in finding.message) == ("info", True)
