"""Each kind of fault that was found in published launches and bug reports: a small input with it, and its healthy twin.

F1 to F10 are kinds of wrong verdicts on launch recipes, M1 to M16 kinds of faults in public threads. What no fleet file
alone can show (hosts, processes, HTTP bodies) has its test elsewhere: those are named, and held to exist.
"""

import importlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pdctl.derive import Request, derive
from tests.unit.check.test_verdicts import (
    DENSE,
    DRAFTED,
    HYBRID,
    MLA,
    SLIDING,
    connector,
    drafts,
    error,
    flags,
    said,
    verdict,
)

STRANGER = {**DENSE, "model_type": "stranger", "architectures": ["StrangerForCausalLM"], "compress_ratios": [4, 128]}
OFFLOAD = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
OLD = "image: 'lmsysorg/sglang:v0.5.16'"


def multi(role: str, child: str = "NixlConnector") -> str:
    inner = {"connectors": [{"kv_connector": child, "kv_role": role}, OFFLOAD]}
    config = {"kv_connector": "MultiConnector", "kv_role": role, "kv_connector_extra_config": inner}
    return flags("--kv-transfer-config", json.dumps(config))


class Fault(NamedTuple):
    """A pair with the fault and what is said of it above information; then the pair without it, of which nothing is."""

    head: str
    config: dict[str, Any]
    faulty: tuple[str, str]
    want: dict[str, str]
    healthy: tuple[str, str]


FAULTS = {
    "F1 drafts in the text are nobody's business": Fault(
        "vllm nixl", DRAFTED, ("", drafts("mtp", 1)), error("PD1015"), ("", drafts("ngram", 4, prompt_lookup_max=4))
    ),
    "F1 numbers of tokens": Fault(
        "vllm nixl",
        DRAFTED,
        (drafts("mtp", 1), drafts("mtp", 3, revision="b")),
        error("PD1015"),
        (drafts("mtp", 1), drafts("mtp", 3)),
    ),
    "F2 a wrapped connector": Fault(
        "vllm nixl",
        DENSE,
        (multi("kv_producer", "NixlPushConnector"), connector("NixlConnector", "kv_consumer")),
        error("PD1036"),
        (multi("kv_producer"), connector("NixlConnector", "kv_consumer")),
    ),
    "F3 replicated heads": Fault(
        "vllm nixl", DENSE, ("attn_tp: 8", "attn_tp: 4"), error("PD1005"), ("attn_tp: 4", "attn_tp: 8")
    ),
    "F3 stages on a consumer": Fault("vllm nixl", DENSE, ("pp: 2", "pp: 2"), error("PD1006"), ("", "")),
    "F4 the release decides": Fault(
        "sglang nixl",
        SLIDING,
        (f"attn_tp: 1, {OLD}", f"attn_tp: 4, {OLD}"),
        error("PD1005"),
        ("attn_tp: 1, image: 'lmsysorg/sglang:v0.5.23'", "attn_tp: 4, image: 'lmsysorg/sglang:v0.5.23'"),
    ),
    "F6 an unknown model": Fault(
        "sglang mooncake",
        STRANGER,
        (flags("--context-length", "8192"), ""),
        {"PD1034": "warning", "PD1027": "error"},
        ("", ""),
    ),
    "F7 a connector on one side": Fault(
        "vllm nixl",
        DENSE,
        (connector("NixlConnector", "kv_producer"), ""),
        error("PD1042"),
        (connector("NixlConnector", "kv_producer"), connector("NixlConnector", "kv_consumer")),
    ),
    "F8 two producers": Fault(
        "vllm nixl",
        DENSE,
        (connector("NixlConnector", "kv_producer"), connector("NixlConnector", "kv_producer")),
        error("PD1033"),
        (connector("NixlConnector", "kv_both"), connector("NixlConnector", "kv_both")),
    ),
    "F9 ranks that overlap": Fault(
        "vllm nixl",
        DENSE,
        ("", f"hosts: [a, b], {flags('--data-parallel-size', '2', '--data-parallel-rank', '0')}"),
        error("PD1041"),
        ("", "hosts: [a, b]"),
    ),
    "F9 drafts without a top-k": Fault(
        "sglang mooncake",
        DRAFTED,
        ("", "speculative: {algorithm: NEXTN, num_steps: 3, num_draft_tokens: 4}"),
        error("PD1055"),
        ("", "speculative: {algorithm: NEXTN, num_steps: 3, eagle_topk: 1, num_draft_tokens: 4}"),
    ),
    "F10 limits three per cent apart": Fault(
        "sglang mooncake",
        DENSE,
        (flags("--context-length", "9280"), flags("--context-length", "9600")),
        {"PD1027": "warning"},
        (flags("--context-length", "9600"), flags("--context-length", "9280")),
    ),
    "F10 windows over nixl": Fault(
        "vllm nixl",
        SLIDING,
        ("attn_tp: 8", "attn_tp: 4"),
        error("PD1005"),
        ("attn_tp: 2", "attn_tp: 4"),
    ),
    "M2 equal bytes, another type": Fault(
        "sglang mooncake",
        DENSE,
        (flags("--dtype", "float16"), ""),
        error("PD1035"),
        (flags("--dtype", "bfloat16"), ""),
    ),
    "M2 equal bytes, another rotary base": Fault(
        "vllm mooncake",
        DENSE,
        (flags("--hf-overrides", '{"rope_theta": 10000}'), ""),
        error("PD1038"),
        (flags("--hf-overrides", '{"rope_theta": 1000000}'), ""),
    ),
    "M3 a recurrent state in stages": Fault("vllm nixl", HYBRID, ("pp: 2", ""), error("PD1006"), ("", "")),
    "M4 indivisible context parallelism": Fault(
        "sglang mooncake",
        MLA,
        ("attn_tp: 8", f"attn_tp: 8, {flags('--dcp-size', '3')}"),
        error("PD1006"),
        ("attn_tp: 8", f"attn_tp: 8, {flags('--dcp-size', '2')}"),
    ),
    "M4 prefill's on the wrong side": Fault(
        "vllm nixl",
        MLA,
        ("attn_tp: 8", f"attn_tp: 8, {flags('--prefill-context-parallel-size', '2')}"),
        error("PD1006"),
        (f"attn_tp: 8, {flags('--prefill-context-parallel-size', '2')}", "attn_tp: 8"),
    ),
    "M6 a factor of the hash": Fault(
        "vllm nixl",
        DENSE,
        (flags("--disable-hybrid-kv-cache-manager"), ""),
        error("PD1036"),
        (flags("--disable-hybrid-kv-cache-manager"), flags("--disable-hybrid-kv-cache-manager")),
    ),
    "M11 an abbreviated flag": Fault(
        "sglang mooncake",
        DENSE,
        (flags("--context-len", "9217"), ""),
        error("PD1027"),
        ("", flags("--context-len", "9217")),
    ),
    "M11 a number with a letter": Fault(
        "vllm nixl", DENSE, (flags("--max-model-len", "9k"), ""), error("PD1027"), (flags("--max-model-len", "41k"), "")
    ),
    "M13 a pool that is swapped": Fault(
        "sglang mooncake", MLA, ("", flags("--enable-hisparse")), {"PD1034": "warning"}, ("", "")
    ),
    "M14 a 16-bit type that is not the model's": Fault(
        "vllm nixl",
        DENSE,
        ("kv_cache_dtype: float16", "kv_cache_dtype: float16"),
        {"PD1037": "warning"},
        ("kv_cache_dtype: bfloat16", "kv_cache_dtype: bfloat16"),
    ),
}

ELSEWHERE = {
    "M1": "tests.unit.transfer_session.test_registered:test_a_second_registration_takes_nothing_from_who_lives",
    "M5": "tests.unit.preflight.test_named_devices:test_the_place_that_counts_is_the_one_that_the_engine_follows",
    "M7": "tests.unit.preflight.test_ucx:test_a_module_that_the_fleet_needs",
    "M8": "tests.unit.preflight.test_named_devices:test_only_gpus_that_the_pool_takes_want_a_near_adapter",
    "M9": "tests.unit.preflight.test_gpus:test_engines_of_one_host_take_what_is_there_and_each_its_own",
    "M10": "tests.unit.preflight.test_gpus:test_an_integrated_gpu_is_out_of_an_adapters_reach_whatever_is_loaded",
    "M12": "tests.unit.preflight.test_pairs:test_roce_without_a_route",
    "M16": "tests.unit.reference.test_bodies:test_what_would_be_left_out_of_the_answer_is_refused",
}
HERE = {"F5": "test_class_defaults_are_those_of_the_class", "M15": "test_a_word_that_the_engine_takes_is_no_mistake"}


@pytest.mark.code("PD1055")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_said_and_its_twin_is_left_alone(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    report = verdict(tmp_path, fault.head, *fault.faulty, fault.config)
    assert said(report) == fault.want, [finding.message for finding in report.findings]
    assert not report.ok or "error" not in fault.want.values()
    twin = verdict(tmp_path, fault.head, *fault.healthy, fault.config)
    left = {"PD1034": "warning"} if fault.config is STRANGER else {}
    assert said(twin) == left, [finding.message for finding in twin.findings]


@pytest.mark.parametrize("place", ELSEWHERE.values(), ids=ELSEWHERE.keys())
def test_what_no_fleet_file_shows_has_its_test_elsewhere(place: str) -> None:
    module, _, name = place.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_no_kind_is_left_out() -> None:
    here = {name.split()[0] for name in FAULTS} | ELSEWHERE.keys() | HERE.keys()
    assert all(test in globals() for test in HERE.values())
    assert here == {*(f"F{n}" for n in range(1, 11)), *(f"M{n}" for n in range(1, 17))}


def test_class_defaults_are_those_of_the_class() -> None:
    """F5: a form of Gemma 3 without head_dim has the class's 256, not hidden / heads, which is 240."""
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 2,
        "sliding_window": 1024,
        "layer_types": ["sliding_attention", "full_attention"],
        "torch_dtype": "bfloat16",
    }
    manifest = derive(Request(engine="vllm", role="prefill", config=config, page_size=16)).manifest
    lengths = {entry.item_len for part in manifest.stages[0].components for entry in part.entries}
    assert lengths == {16 * 8 * 256 * 2 * 2}


def test_a_word_that_the_engine_takes_is_no_mistake(tmp_path: Path) -> None:
    """M15: the engine drafts so; whatever is known of it, no command line is called one that cannot be understood."""
    report = verdict(tmp_path, "sglang mooncake", *["speculative: {algorithm: DSPARK}"] * 2, DENSE)
    assert report.pairs[0].verdict in ("fits", "fits with warnings", "unknown")
    assert "PD0001" not in said(report)


@pytest.mark.code("PD1056")
def test_data_parallel_attention_of_one_rank_is_said(tmp_path: Path) -> None:
    """F9: the flag alone splits nothing; with two ranks it does."""
    words = flags("--enable-dp-attention")
    report = verdict(tmp_path, "sglang mooncake", f"attn_tp: 2, {words}", "attn_tp: 2", MLA)
    assert "PD1056" in {finding.code for finding in report.findings}
    report = verdict(tmp_path, "sglang mooncake", f"attn_tp: 2, dp: 2, {words}", "attn_tp: 2", MLA)
    assert "PD1056" not in {finding.code for finding in report.findings}


@pytest.mark.code("PD1054")
def test_connectors_have_their_releases(tmp_path: Path) -> None:
    """HiSparse's came with 0.30; P2pNccl's was gone before 0.24, unless a module says where it is."""
    other = connector("NixlConnector")
    wrapped = multi("kv_both").replace("OffloadingConnector", "HiSparseConnector")
    for version, want in (("0.29.0", error("PD1054")), ("0.30.0", {})):
        sides = [f"engine_version: {version}, {words}" for words in (wrapped, other)]
        assert said(verdict(tmp_path, "vllm nixl", *sides, DENSE)) == want
    gone = multi("kv_both").replace("OffloadingConnector", "P2pNcclConnector")
    assert said(verdict(tmp_path, "vllm nixl", gone, gone, DENSE)) == {"PD1054": "warning"}
    stated = f"engine_version: 0.31.0, {gone}"
    assert said(verdict(tmp_path, "vllm nixl", stated, stated, DENSE)) == error("PD1054")
    mine = gone.replace('P2pNcclConnector\\"', 'P2pNcclConnector\\", \\"kv_connector_module_path\\": \\"mine\\"')
    assert said(verdict(tmp_path, "vllm nixl", mine, mine, DENSE)) == {}
