"""Verdicts by connector and direction: a fault of each kind, and its healthy twin one word away."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pdctl.check import Options, check
from pdctl.errors import ConfigError
from pdctl.report import Report

DENSE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "rope_theta": 1000000,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 40960,
}
DRAFTED = {**DENSE, "num_nextn_predict_layers": 1}
MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 1,
}
SLIDING = {
    **DENSE,
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
HYBRID = {
    **DENSE,
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "full_attention_interval": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}
KDA = {
    **MLA,
    "model_type": "kimi_linear",
    "architectures": ["KimiLinearForCausalLM"],
    "num_nextn_predict_layers": 0,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "kda_layers": [1, 2, 3],
        "head_dim": 64,
        "num_heads": 16,
        "short_conv_kernel_size": 4,
    },
}


def verdict(folder: Path, head: str, prefill: str, decode: str, config: dict[str, Any], more: str = "") -> Report:
    """The report on a fleet of one pool a role; `head` is `engine backend`, `more` further lines of the file."""
    engine, backend = head.split()
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text(json.dumps(config))
    file = folder / "fleet.yaml"
    lines = ["schema: pdctl.fleet/v1", "name: f", "model: {path: model}", f"engine: {engine}"]
    lines += [f"transfer: {{backend: {backend}}}", f"prefill: {{{prefill}}}", f"decode: {{{decode}}}", more]
    file.write_text("\n".join(lines) + "\n")
    return check([file], Options())


def said(report: Report) -> dict[str, str]:
    """Severities by code; codes of information are left out, for they alarm nobody."""
    return {one.code: one.severity for one in report.findings if one.severity != "info" and one.code != "PD2017"}


def flags(*words: str) -> str:
    """`args: […]` of a pool."""
    return f"args: {json.dumps(list(words))}"


def connector(name: str, role: str = "kv_both") -> str:
    """A pool's own transfer config."""
    return flags("--kv-transfer-config", json.dumps({"kv_connector": name, "kv_role": role}))


def drafts(method: str, tokens: int, **more: Any) -> str:
    """Speculation of a pool."""
    return f"speculative: {json.dumps({'method': method, 'num_speculative_tokens': tokens, **more})}"


class Case(NamedTuple):
    """A pair, and what is said of it above information."""

    head: str
    prefill: str
    decode: str
    config: dict[str, Any]
    want: dict[str, str]


def error(code: str) -> dict[str, str]:
    return {code: "error"}


HANDSHAKE = {
    "push and pull": Case(
        "vllm nixl", connector("NixlPushConnector"), connector("NixlPullConnector"), DENSE, error("PD1036")
    ),
    "push on both": Case("vllm nixl", connector("NixlPushConnector"), connector("NixlPushConnector"), DENSE, {}),
    "two names of pull": Case("vllm nixl", connector("NixlConnector"), connector("NixlPullConnector"), DENSE, {}),
    "attention backends": Case(
        "vllm nixl",
        flags("--attention-backend", "FLASH_ATTN"),
        flags("--attention-backend", "FLASHINFER"),
        DENSE,
        error("PD1036"),
    ),
    "one attention backend": Case(
        "vllm nixl",
        flags("--attention-backend", "FLASHINFER"),
        flags("--attention-backend=FLASHINFER"),
        DENSE,
        {},
    ),
    "attention backends by a config": Case(
        "vllm nixl",
        flags("--attention-config", '{"backend": "FLASH_ATTN"}'),
        flags("--attention-config.backend", "FLASHINFER"),
        DENSE,
        error("PD1036"),
    ),
    "one attention backend by flag and config": Case(
        "vllm nixl",
        flags("--attention-config", '{"backend": "FLASHINFER"}'),
        flags("--attention-backend", "FLASHINFER"),
        DENSE,
        {},
    ),
    "attention backends over mooncake": Case(
        "vllm mooncake",
        flags("--attention-backend", "FLASH_ATTN"),
        flags("--attention-backend", "FLASHINFER"),
        DENSE,
        {},
    ),
    "hybrid manager on one side": Case(
        "vllm nixl", flags("--disable-hybrid-kv-cache-manager"), "", DENSE, error("PD1036")
    ),
    "hybrid manager off on both": Case(
        "vllm nixl",
        flags("--disable-hybrid-kv-cache-manager"),
        flags("--disable-hybrid-kv-cache-manager"),
        DENSE,
        {},
    ),
    "ngram on decode": Case("vllm nixl", "", drafts("ngram", 4, prompt_lookup_max=4), DENSE, {}),
    "ngram on prefill": Case("vllm nixl", drafts("ngram", 4, prompt_lookup_max=4), "", DENSE, {}),
    "tokens of mtp": Case("vllm nixl", drafts("mtp", 1), drafts("mtp", 3), DRAFTED, {}),
    "tokens of mtp over mooncake": Case("vllm mooncake", drafts("mtp", 1), drafts("mtp", 3), DRAFTED, {}),
    "mtp on decode only": Case("vllm nixl", "", drafts("mtp", 1), DRAFTED, error("PD1015")),
    "mtp against ngram": Case("vllm nixl", drafts("mtp", 1), drafts("ngram", 4), DRAFTED, error("PD1015")),
    "draft revisions": Case(
        "vllm nixl", drafts("mtp", 1, revision="a"), drafts("mtp", 1, revision="b"), DRAFTED, error("PD1015")
    ),
    "parallel drafting as by default": Case(
        "vllm nixl", drafts("mtp", 1, parallel_drafting=False), drafts("mtp", 1), DRAFTED, {}
    ),
    "mtp on decode only over mooncake": Case("vllm mooncake", "", drafts("mtp", 1), DRAFTED, {}),
}

SIZES = {
    "pp on a consumer": Case("vllm nixl", "pp: 2", "pp: 2", DENSE, error("PD1006")),
    "pp on a pulled producer": Case("vllm nixl", "pp: 2", "", DENSE, error("PD1006")),
    "pp on a pushing producer": Case(
        "vllm nixl",
        f"pp: 2, {connector('NixlPushConnector', 'kv_producer')}",
        connector("NixlPushConnector", "kv_consumer"),
        DENSE,
        {},
    ),
    "pp over mooncake": Case("vllm mooncake", "pp: 2", "pp: 2", DENSE, {}),
    "pp with windows, pulled": Case("vllm nixl", "pp: 2", "", SLIDING, error("PD1006")),
    "pp with windows, pushed": Case(
        "vllm nixl",
        f"pp: 2, {connector('NixlPushConnector', 'kv_producer')}",
        connector("NixlPushConnector", "kv_consumer"),
        SLIDING,
        {},
    ),
    "pp with a recurrent state": Case(
        "vllm nixl",
        f"pp: 2, {connector('NixlPushConnector', 'kv_producer')}",
        connector("NixlPushConnector", "kv_consumer"),
        HYBRID,
        error("PD1006"),
    ),
    "replicated heads above decode's tp": Case("vllm nixl", "attn_tp: 8", "attn_tp: 4", DENSE, error("PD1005")),
    "heads once each": Case("vllm nixl", "attn_tp: 4", "attn_tp: 2", DENSE, {}),
    "replicated heads below decode's tp": Case("vllm nixl", "attn_tp: 4", "attn_tp: 8", DENSE, {}),
    "heads replicated on both sides, decode's tp above": Case("vllm nixl", "attn_tp: 8", "attn_tp: 16", DENSE, {}),
    "latents are no heads": Case("vllm nixl", "attn_tp: 8", "attn_tp: 4", MLA, {}),
    "windows over nixl": Case("vllm nixl", "attn_tp: 2", "attn_tp: 4", SLIDING, {}),
    "windows of other heads": Case(
        "vllm nixl",
        "attn_tp: 2",
        "attn_tp: 4",
        {**SLIDING, "swa_num_key_value_heads": 8, "swa_head_dim": 64},
        {"PD1005": "warning"},
    ),
    "windows over mooncake": Case("vllm mooncake", "attn_tp: 2", "attn_tp: 4", SLIDING, {"PD1005": "warning"}),
    "pcp on decode": Case(
        "vllm nixl", "attn_tp: 8", f"attn_tp: 8, {flags('--prefill-context-parallel-size', '2')}", MLA, error("PD1006")
    ),
    "pcp on prefill": Case(
        "vllm nixl", f"attn_tp: 8, {flags('--prefill-context-parallel-size', '2')}", "attn_tp: 8", MLA, {}
    ),
    "vllm's dcp that does not divide": Case(
        "vllm mooncake", "attn_tp: 8", f"attn_tp: 8, {flags('-dcp', '3')}", MLA, error("PD1006")
    ),
    "vllm's dcp that does not span tp": Case(
        "vllm nixl", "attn_tp: 8", f"attn_tp: 8, {flags('--decode-context-parallel-size', '4')}", MLA, error("PD1006")
    ),
    "vllm's dcp that spans tp": Case(
        "vllm nixl", "attn_tp: 8", f"attn_tp: 8, {flags('--decode-context-parallel-size', '8')}", MLA, {}
    ),
    "vllm's dcp of heads": Case(
        "vllm nixl", "attn_tp: 8", f"attn_tp: 8, {flags('--decode-context-parallel-size', '8')}", DENSE, error("PD1006")
    ),
    "vllm's dcp pushed": Case(
        "vllm nixl",
        f"attn_tp: 8, {connector('NixlPushConnector')}",
        "attn_tp: 8, "
        + flags(
            "--kv-transfer-config",
            '{"kv_connector": "NixlPushConnector", "kv_role": "kv_both"}',
            "--decode-context-parallel-size",
            "8",
        ),
        MLA,
        error("PD1006"),
    ),
    "vllm's unequal dcp with a recurrent state": Case(
        "vllm nixl", "attn_tp: 4", f"attn_tp: 4, {flags('--decode-context-parallel-size', '4')}", KDA, error("PD1006")
    ),
    "vllm's equal dcp with a recurrent state": Case(
        "vllm nixl",
        f"attn_tp: 4, {flags('--decode-context-parallel-size', '4')}",
        f"attn_tp: 4, {flags('--decode-context-parallel-size', '4')}",
        KDA,
        {},
    ),
    "vllm's dcp over mooncake": Case(
        "vllm mooncake",
        "attn_tp: 8",
        f"attn_tp: 8, {flags('--decode-context-parallel-size', '8')}",
        MLA,
        error("PD1006"),
    ),
    "sglang's dcp that does not divide": Case(
        "sglang mooncake", "attn_tp: 8", f"attn_tp: 8, {flags('--dcp-size', '3')}", MLA, error("PD1006")
    ),
    "sglang's dcp that divides": Case(
        "sglang mooncake", "attn_tp: 8", f"attn_tp: 8, {flags('--dcp-size', '4')}", MLA, {}
    ),
    "sglang's unequal dcp": Case(
        "sglang mooncake",
        f"attn_tp: 8, {flags('--dcp-size', '2')}",
        f"attn_tp: 8, {flags('--dcp-size', '4')}",
        MLA,
        error("PD1006"),
    ),
    "sglang's dcp with an index": Case(
        "sglang mooncake",
        "attn_tp: 8",
        f"attn_tp: 8, {flags('--dcp-size', '4')}",
        {**MLA, "model_type": "deepseek_v32", "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64},
        error("PD1006"),
    ),
}

NUMBERS = {
    "dtypes of sglang": Case(
        "sglang mooncake", flags("--dtype", "float16"), flags("--dtype", "bfloat16"), DENSE, error("PD1035")
    ),
    "dtype on one side": Case("sglang mooncake", flags("--dtype", "half"), "", DENSE, error("PD1035")),
    "dtype as the config says": Case("sglang mooncake", flags("--dtype", "bfloat16"), "", DENSE, {}),
    "two words of one dtype": Case("sglang mooncake", flags("--dtype", "half"), flags("--dtype", "float16"), DENSE, {}),
    "dtypes of vllm": Case(
        "vllm nixl", flags("--dtype", "float16"), flags("--dtype", "bfloat16"), DENSE, error("PD1035")
    ),
    "types of a recurrent state": Case(
        "sglang mooncake",
        flags("--mamba-ssm-dtype", "float16"),
        flags("--mamba-ssm-dtype", "bfloat16"),
        HYBRID,
        error("PD1035"),
    ),
    "fp8 keys of unequal models": Case(
        "sglang mooncake",
        f"kv_cache_dtype: fp8_e4m3, {flags('--dtype', 'float16')}",
        "kv_cache_dtype: fp8_e4m3",
        DENSE,
        {},
    ),
    "16 bits that are not the model's": Case(
        "vllm mooncake", "kv_cache_dtype: float16", "kv_cache_dtype: float16", DENSE, {"PD1037": "warning"}
    ),
    "two words of one KV type over mooncake": Case("vllm mooncake", "kv_cache_dtype: bfloat16", "", DENSE, {}),
    "two words of one KV type over nixl": Case("vllm nixl", "kv_cache_dtype: bfloat16", "", DENSE, error("PD1002")),
    "two KV types over mooncake": Case(
        "vllm mooncake", "kv_cache_dtype: fp8_e4m3", "kv_cache_dtype: fp8_e5m2", DENSE, error("PD1002")
    ),
    "16 bits that are": Case("vllm mooncake", "kv_cache_dtype: bfloat16", "kv_cache_dtype: bfloat16", DENSE, {}),
    "rotary base": Case(
        "sglang mooncake",
        flags("--json-model-override-args", '{"rope_theta": 1000}'),
        "",
        DENSE,
        error("PD1038"),
    ),
    "rope scaling": Case(
        "vllm nixl", "", flags("--hf-overrides", '{"rope_scaling": {"factor": 4}}'), DENSE, error("PD1038")
    ),
    "one rotary base": Case(
        "vllm nixl",
        flags("--hf-overrides", '{"rope_theta": 7}'),
        flags("--hf-overrides", '{"rope_theta": 7}'),
        DENSE,
        {},
    ),
    "overrides of what fills nothing": Case(
        "vllm nixl", flags("--hf-overrides", '{"max_position_embeddings": 8192, "eos_token_id": 3}'), "", DENSE, {}
    ),
}

ROLES = {
    "two producers": Case(
        "vllm mooncake",
        connector("MooncakeConnector", "kv_producer"),
        connector("MooncakeConnector", "kv_producer"),
        DENSE,
        error("PD1033"),
    ),
    "two consumers": Case(
        "vllm nixl",
        connector("NixlConnector", "kv_consumer"),
        connector("NixlConnector", "kv_consumer"),
        DENSE,
        error("PD1033"),
    ),
    "a producer and a consumer": Case(
        "vllm nixl", connector("NixlConnector", "kv_producer"), connector("NixlConnector", "kv_consumer"), DENSE, {}
    ),
    "both on both": Case("vllm nixl", connector("NixlConnector"), connector("NixlConnector"), DENSE, {}),
}

CASES = {**HANDSHAKE, **SIZES, **NUMBERS, **ROLES}


@pytest.mark.code("PD1005", "PD1006", "PD1015", "PD1033", "PD1035", "PD1036", "PD1037", "PD1038")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_verdict(case: Case, tmp_path: Path) -> None:
    report = verdict(tmp_path, case.head, case.prefill, case.decode, case.config)
    assert said(report) == case.want, [finding.message for finding in report.findings]
    assert report.pairs[0].verdict == (
        "refused" if "error" in case.want.values() else "fits with warnings" if case.want else "fits"
    )


def test_a_refusal_names_where_the_engine_says_so(tmp_path: Path) -> None:
    """A reader can look it up: file and line of the version that was read."""
    report = verdict(tmp_path, "vllm nixl", "pp: 2", "pp: 2", HYBRID)
    (finding,) = (one for one in report.findings if one.code == "PD1006" and "prefill" in one.message)
    assert any(one.source == "vLLM 0.32.0 nixl/base_worker.py:769" for one in finding.evidence)
    assert any("fleet.yaml:6" in one.source for one in finding.evidence)


@pytest.mark.code("PD1006")
@pytest.mark.parametrize(
    ("backend", "prefill", "decode", "config", "says"),
    [
        ("nixl", ("-pcp", "2", "-dcp", "2"), (), MLA, "NIXL takes both at TP 1 only"),
        ("nixl", ("-pcp", "2"), ("-dcp", "8"), MLA, "replicated prefill context parallelism on prefill"),
        ("mooncake", ("-dcp", "3"), ("-dcp", "3"), MLA, "3 on decode does not divide TP 8"),
        ("mooncake", ("-dcp", "8"), ("-dcp", "8"), DENSE, "TP 8 holds each of 4 KV heads 2 times"),
        ("mooncake", ("-dcp", "8"), ("-dcp", "8"), MLA, "not established over Mooncake"),
    ],
)
def test_context_parallelism_of_vllm(
    tmp_path: Path, backend: str, prefill: tuple[str, ...], decode: tuple[str, ...], config: dict[str, Any], says: str
) -> None:
    """Rows that speak beside another one, by their words."""
    sides = (f"attn_tp: 8, {flags(*words)}" if words else "attn_tp: 8" for words in (prefill, decode))
    report = verdict(tmp_path, f"vllm {backend}", *sides, config)
    assert any(says in one.message for one in report.findings if one.code == "PD1006")


def test_a_backend_that_one_side_leaves_to_the_engine_is_not_judged(tmp_path: Path) -> None:
    report = verdict(tmp_path, "vllm nixl", flags("--attention-backend", "FLASHINFER"), "", DENSE)
    assert said(report) == {}
    assert [one.reason for one in report.skipped if one.rule == "attention_backend"] == [
        "decode leaves its attention backend to the engine; the handshake compares it"
    ]


UNKNOWN = {
    "architectures": ["GriffinForCausalLM"],
    "model_type": "griffin",
    "num_hidden_layers": 4,
    "lru_width": 512,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


@pytest.mark.code("PD1034")
@pytest.mark.parametrize(
    ("prefill", "decode", "also"),
    [
        ("attn_tp: 8", "attn_tp: 8", {}),
        (flags("--context-length", "9217"), "", error("PD1027")),
        (flags("--dtype", "float16"), flags("--dtype", "bfloat16"), error("PD1035")),
        (flags("--json-model-override-args", '{"rope_theta": 7}'), "", error("PD1038")),
    ],
)
def test_an_unknown_model_leaves_the_layout_unknown_and_nothing_else(
    tmp_path: Path, prefill: str, decode: str, also: dict[str, str]
) -> None:
    """Said once, whatever the number of pools; nothing about buffers is held; rules that need none still speak."""
    report = verdict(tmp_path, "sglang mooncake", prefill, decode, UNKNOWN)
    assert said(report) == {"PD1034": "warning", **also}
    assert len([one for one in report.findings if one.code == "PD1034"]) == 1
    assert report.pairs[0].verdict == ("refused" if also else "unknown")
    assert not report.ok
    assert not {one.rule for one in report.held} & {"page_size", "kv_dtype", "unequal_tp", "item_lengths", "splits"}


def test_a_value_that_no_engine_would_take_is_no_unknown_model(tmp_path: Path) -> None:
    """A mistake in a config is unusable input, and a model without a rule is not."""
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        verdict(tmp_path, "sglang mooncake", "", "", {**UNKNOWN, "lru_width": None, "num_hidden_layers": "4"})


@pytest.mark.code("PD1034")
def test_a_draft_of_an_unknown_kind_leaves_the_layout_unknown(tmp_path: Path) -> None:
    draft = 'speculative: {"algorithm": "DSPARK"}'
    report = verdict(tmp_path, "sglang mooncake", draft, draft, DRAFTED)
    assert (said(report), report.pairs[0].verdict) == ({"PD1034": "warning"}, "unknown")


@pytest.mark.code("PD1034")
@pytest.mark.parametrize(
    ("flag", "word"),
    [("--enable-hisparse", "unknown"), ("--enable-unified-memory", "unknown"), ("--disable-radix-cache", "fits")],
)
def test_a_flag_that_swaps_buffers_unjudged(tmp_path: Path, flag: str, word: str) -> None:
    """What the derivation knows is not what runs; a flag that leaves buffers alone changes no verdict."""
    report = verdict(tmp_path, "sglang mooncake", "", flags(flag), DENSE)
    assert report.pairs[0].verdict == word
    assert said(report) == ({"PD1034": "warning"} if word == "unknown" else {})
    assert ("item_lengths" in {one.rule for one in report.held}) is (word == "fits")


@pytest.mark.code("PD1038")
@pytest.mark.parametrize(
    ("prefill", "decode", "want"),
    [
        ("/a/scales.json", "/b/scales.json", {}),
        ("/a/scales.json", "/a/other.json", error("PD1038")),
        ("/a/scales.json", None, error("PD1038")),
    ],
)
def test_scales_of_the_kv(tmp_path: Path, prefill: str, decode: str | None, want: dict[str, str]) -> None:
    """The same file may lie in another folder on another host."""
    sides = (flags("--quantization-param-path", path) if path else "" for path in (prefill, decode))
    fp8 = "kv_cache_dtype: fp8_e4m3"
    report = verdict(tmp_path, "sglang mooncake", *(f"{fp8}, {side}" if side else fp8 for side in sides), DENSE)
    assert said(report) == want


@pytest.mark.code("PD1041")
@pytest.mark.parametrize(
    ("pool", "ranks", "refused"),
    [
        ("replicas: 2", ("1", "8", None), True),
        ("hosts: [a, b]", ("1", "8", None), True),
        ("replicas: 1", ("1", "8", None), False),
        ("replicas: 1", ("8", "8", None), True),
        ("replicas: 1", ("1", "8", "4"), True),
        ("replicas: 2", (None, "8", "4"), False),
    ],
)
def test_data_parallel_ranks(tmp_path: Path, pool: str, ranks: tuple[str | None, ...], refused: bool) -> None:
    """One rank for several engines or hosts; one past the last; one with several local ranks."""
    names = ("--data-parallel-rank", "--data-parallel-size", "--data-parallel-size-local")
    words = [word for name, value in zip(names, ranks, strict=True) if value for word in (name, value)]
    report = verdict(tmp_path, "vllm nixl", f"{pool}, {flags(*words)}", "", MLA)
    assert said(report) == (error("PD1041") if refused else {})


@pytest.mark.code("PD1042")
def test_a_connector_by_flags_on_one_side(tmp_path: Path) -> None:
    report = verdict(tmp_path, "vllm nixl", connector("NixlConnector"), "", DENSE)
    assert said(report) == error("PD1042")
    assert "decode has no --kv-transfer-config" in report.findings[0].message


@pytest.mark.code("PD1027")
@pytest.mark.parametrize(
    ("prefill", "want"), [("9k", "error"), ("40.96k", None), ("40K", None), ("39K", "error"), ("auto", None)]
)
def test_lengths_as_vllm_takes_them(tmp_path: Path, prefill: str, want: str | None) -> None:
    """Small letters count in thousands, capitals in 1,024; what is no number is not judged."""
    report = verdict(tmp_path, "vllm nixl", flags("--max-model-len", prefill), "", DENSE)
    assert said(report) == ({"PD1027": want} if want else {})
    assert ("context_length" in {one.rule for one in report.skipped}) is (prefill == "auto")


@pytest.mark.code("PD1020")
@pytest.mark.parametrize(
    ("word", "want"), [("fp4_mx_block16", error("PD1020")), ("nvfp4", error("PD1020")), ("mxfp8", {}), ("fp8_e4m3", {})]
)
def test_scales_of_four_bits_are_not_moved(tmp_path: Path, word: str, want: dict[str, str]) -> None:
    """Equal bytes on both sides, and decode reads them with scales that nobody sent."""
    side = f"kv_cache_dtype: {word}, page_size: 64"
    assert said(verdict(tmp_path, "sglang mooncake", side, side, DENSE)) == want


@pytest.mark.code("PD1005")
def test_block_scales_across_unequal_tp(tmp_path: Path) -> None:
    sides = (f"kv_cache_dtype: mxfp8, page_size: 128, attn_tp: {tp}" for tp in (2, 1))
    assert said(verdict(tmp_path, "sglang mooncake", *sides, DENSE)) == error("PD1005")
