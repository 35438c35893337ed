"""PD1060: SGLang's blocks of one token each against what Mooncake's queue takes over TCP."""

from pathlib import Path
from typing import Any

import pytest

from pdctl.check.limits import transport_limits
from pdctl.check.run import Options, check_fleet
from pdctl_transfer.rules import Finding, Skipped
from tests.unit.check.test_ways import fleet

QUEUED, WAITING = "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"
TCP = {"protocol": "tcp"}


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def said(tmp_path: Path, transfer: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any], **more: Any) -> str:
    """What is said of a batch's length: the finding's words, empty where there is none."""
    loaded = fleet(tmp_path, more.get("model", "llama31_70b"), more.get("engine", "sglang"), transfer, prefill, decode)
    found = [one for one in check_fleet(loaded, Options()).findings if one.code == "PD1060"]
    assert all(one.severity == "error" for one in found)
    return found[0].message if found else ""


@pytest.mark.code("PD1060")
def test_the_longest_prompt_that_the_engine_takes_must_fit(tmp_path: Path) -> None:
    """2048 blocks of a peer, one a token; the model's own limit is the longest where no flag is."""
    words = said(tmp_path, TCP, {"attn_tp": 1}, {"attn_tp": 2})
    assert "131072 in one batch" in words
    assert "takes 2048" in words
    for length, fits in (("2048", True), ("2049", False)):
        args = {"args": ["--context-length", length]}
        assert bool(said(tmp_path, TCP, {"attn_tp": 1, **args}, {"attn_tp": 2, **args})) is not fits


@pytest.mark.parametrize(
    ("transfer", "prefill", "decode"),
    [
        ({"protocol": "rdma"}, {"attn_tp": 1}, {"attn_tp": 2}),
        (TCP, {"attn_tp": 2}, {"attn_tp": 2}),
        ({**TCP, "backend": "nixl"}, {"attn_tp": 1}, {"attn_tp": 2}),
        ({**TCP, "core": "pdctl"}, {"attn_tp": 1}, {"attn_tp": 2}),
        ({**TCP, "core": "auto"}, {"attn_tp": 1}, {"attn_tp": 2}),
    ],
    ids=["rdma", "equal", "nixl", "core", "auto"],
)
def test_other_ways_have_no_such_limit(
    tmp_path: Path, transfer: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any]
) -> None:
    assert said(tmp_path, transfer, prefill, decode) == ""


def test_one_side_without_the_core_is_still_the_engines_way(tmp_path: Path) -> None:
    own = {"attn_tp": 2, "transfer": {"core": "engine"}}
    assert said(tmp_path, {**TCP, "core": "pdctl"}, {"attn_tp": 1}, own)


def test_latents_are_sent_whole(tmp_path: Path) -> None:
    assert said(tmp_path, TCP, {"attn_tp": 1}, {"attn_tp": 2}, model="deepseek_v3") == ""
    assert said(tmp_path, TCP, {"attn_tp": 1}, {"attn_tp": 2}, engine="vllm") == ""


def test_a_staging_buffer_sends_other_blocks_where_both_sides_have_it(tmp_path: Path) -> None:
    env = {"env": {"SGLANG_DISAGG_STAGING_BUFFER": "1"}}
    assert said(tmp_path, TCP, {"attn_tp": 1, **env}, {"attn_tp": 2, **env}) == ""
    assert said(tmp_path, TCP, {"attn_tp": 1, **env}, {"attn_tp": 2})


@pytest.mark.parametrize(
    ("env", "takes"),
    [
        ({QUEUED: "4096"}, 5120),
        ({QUEUED: "32768", WAITING: "32768"}, 65536),
        ({QUEUED: "65536"}, 2048),  # called invalid, and the default used
        ({QUEUED: "many"}, 2048),
        ({"SGLANG_DISAGGREGATION_THREAD_POOL_SIZE": "8"}, 1024),  # two batches of one peer at a time
    ],
)
def test_the_limit_follows_the_variables_of_the_sender(tmp_path: Path, env: dict[str, str], takes: int) -> None:
    assert f"takes {takes}" in said(tmp_path, TCP, {"attn_tp": 1, "env": env}, {"attn_tp": 2})
    assert "takes 2048" in said(tmp_path, TCP, {"attn_tp": 1}, {"attn_tp": 2, "env": env})


def test_a_chunk_bounds_a_batch_only_where_nothing_is_cached(tmp_path: Path) -> None:
    """A prefix that prefill has cached is sent at once, however it was computed."""
    chunk = ["--chunked-prefill-size", "1024"]
    assert said(tmp_path, TCP, {"attn_tp": 1, "args": chunk}, {"attn_tp": 2})
    alone = [*chunk, "--disable-radix-cache"]
    assert said(tmp_path, TCP, {"attn_tp": 1, "args": alone}, {"attn_tp": 2}) == ""
    large = ["--chunked-prefill-size", "4096", "--disable-radix-cache"]
    assert "4096 in one batch" in said(tmp_path, TCP, {"attn_tp": 1, "args": large}, {"attn_tp": 2})


def test_a_chunk_of_unknown_size_is_not_passed_over(tmp_path: Path) -> None:
    args = {"args": ["--disable-radix-cache"]}
    loaded = fleet(tmp_path, "llama31_70b", "sglang", TCP, {"attn_tp": 1, **args}, {"attn_tp": 2})
    report = check_fleet(loaded, Options())
    assert [pair.verdict for pair in report.pairs] == ["unknown"]


def test_preflight_says_it_as_well(tmp_path: Path) -> None:
    loaded = fleet(tmp_path, "llama31_70b", "sglang", TCP, {"attn_tp": 1}, {"attn_tp": 2})
    assert [one.code for one in transport_limits(loaded) if isinstance(one, Finding)] == ["PD1060"]
    by_core = fleet(tmp_path, "llama31_70b", "sglang", {**TCP, "core": "pdctl"}, {"attn_tp": 1}, {"attn_tp": 2})
    assert list(transport_limits(by_core)) == []
    (tmp_path / "llama31_70b/config.json").unlink()
    assert [type(one) for one in transport_limits(loaded)] == [Skipped]
