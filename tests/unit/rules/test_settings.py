"""Rules over the settings of the two sides: each refuses its fault, and nothing else does."""

from typing import Any

import pytest

from pdctl.catalog import words
from pdctl_transfer.layout.manifest import Model, Stage
from pdctl_transfer.rules import Pair
from tests.unit.rules.build import findings, kv, manifest, outcomes, pair, skips
from tests.unit.rules.build import mla as mla_kv


def _severities(judged: Pair) -> dict[str, str]:
    return {code: words(finding).severity for code, finding in findings(judged).items()}


def _sides(prefill: dict[str, Any], decode: dict[str, Any]) -> Pair:
    return pair(manifest("prefill", **prefill), manifest("decode", **decode))


def _vllm_blocks(*sizes: int) -> Pair:
    vllm = {"engine": "vllm", "version": "0.32.0", "backend": "nixl"}
    sides = (
        manifest(role, page_size=size, parts=(kv(1, range(4), page=size),), **vllm)
        for role, size in zip(("prefill", "decode"), sizes, strict=True)
    )
    return pair(*sides)


def test_a_healthy_pair_has_no_finding() -> None:
    """No false alarm on the plainest pair."""
    assert findings(pair()) == {}
    assert skips(pair()) == {}


@pytest.mark.code("PD1001")
@pytest.mark.parametrize("engine", ["sglang", "reference"])
def test_page_sizes(engine: str) -> None:
    """Ids are exchanged, sizes are not. The paged shapes that follow from it are not reported a second time."""
    small = manifest("decode", page_size=32, parts=(kv(1, range(4), page=32),), engine=engine)
    judged = pair(manifest("prefill", engine=engine), small)
    assert _severities(judged) == {"PD1001": "error"}
    assert "kv: shapes follow" in skips(judged)["item_lengths"].reason


@pytest.mark.code("PD1020")
def test_vllm_takes_a_multiple_and_answers_wrongly() -> None:
    """Block 128 against 256: HTTP 200 with wrong output."""
    assert _severities(_vllm_blocks(128, 256)) == {"PD1020": "error"}


def test_vllm_refuses_a_block_that_is_no_multiple() -> None:
    """128 against 32 fails loudly at the handshake: the ordinary code."""
    assert _severities(_vllm_blocks(128, 32)) == {"PD1001": "error"}


@pytest.mark.code("PD1002")
def test_dtypes_are_compared_as_strings() -> None:
    """`auto` and `bfloat16` are the same bytes, and SGLang refuses them."""
    assert _severities(_sides({"kv_cache_dtype": "auto"}, {})) == {"PD1002": "error"}


@pytest.mark.code("PD1002")
def test_a_dtype_of_another_size_is_one_finding() -> None:
    """The item lengths that follow from it are not a second one."""
    small = manifest("decode", kv_cache_dtype="fp8_e4m3", parts=(kv(1, range(4), inner=128),))
    assert _severities(pair(decode=small)) == {"PD1002": "error"}


@pytest.mark.code("PD1003")
def test_layouts_differ_where_both_state_one() -> None:
    """And only there."""
    assert _severities(_sides({"kv_layout": "hnd"}, {})) == {"PD1003": "error"}


def test_a_layout_that_is_not_stated_is_skipped_not_held() -> None:
    """Unknown is never a pass, and never a false alarm."""
    judged = _sides({"kv_layout": None}, {})
    assert findings(judged) == {}
    assert skips(judged)["kv_layout"].reason == "prefill states no layout"
    assert skips(_sides({"kv_layout": None}, {"kv_layout": None}))["kv_layout"].reason == "neither side states one"


@pytest.mark.code("PD1013")
@pytest.mark.parametrize(
    ("prefill", "decode", "codes"),
    [
        (Model("a", "f", "sha256:1"), Model("/srv/a", "f", "sha256:1"), set()),
        (Model("a", "f", "sha256:1"), Model("a", "f", "sha256:2"), {"PD1013"}),
        (Model("a", "f", None), Model("b", "f", "sha256:1"), {"PD1013"}),
        (Model("org/a", "f", None), Model("/srv/models/a/", None, None), set()),
        (Model("a", "llama", None), Model("a", "qwen3", None), {"PD1013"}),
    ],
)
def test_models(prefill: Model, decode: Model, codes: set[str]) -> None:
    """By digest where both have one, by the last part of the name otherwise."""
    assert set(findings(_sides({"model": prefill}, {"model": decode}))) == codes


@pytest.mark.code("PD1013")
def test_models_of_unequal_depth() -> None:
    """One digest, but decode computes two layers more: drafts would be numbered over them. Said once."""
    deeper = {"stages": (Stage(0, (0, 6), (kv(1, range(4)),)),)}
    assert set(findings(_sides({}, deeper))) == {"PD1013"}
    assert set(findings(_sides({}, {**deeper, "model": Model("m", "fam", "sha256:11")}))) == {"PD1013"}


@pytest.mark.code("PD1013")
def test_vllm_compares_the_path_of_the_model() -> None:
    """One model under two names is refused by its handshake; SGLang does not look, so it is a note there."""
    vllm = {"engine": "vllm", "version": "0.32.0", "backend": "nixl"}
    named = {"model": Model("other", "fam", "sha256:00")}
    assert _severities(_sides(vllm, vllm | named)) == {"PD1013": "warning"}
    assert _severities(_sides({}, named)) == {"PD1013": "info"}


@pytest.mark.code("PD1014")
def test_versions() -> None:
    """A warning on SGLang, an error on vLLM, whose handshake refuses it; unknown is skipped."""
    assert _severities(_sides({"version": "0.5.22"}, {})) == {"PD1014": "warning"}
    assert _severities(_sides({"transfer_version": "0.3.12"}, {})) == {"PD1014": "warning"}
    vllm = {"engine": "vllm", "backend": "nixl"}
    assert _severities(_sides(vllm | {"version": "0.31"}, vllm | {"version": "0.32"})) == {"PD1014": "error"}
    assert "prefill does not state" in skips(_sides({"version": None}, {}))["engine_version"].reason


@pytest.mark.code("PD1014")
def test_two_engines_share_no_protocol() -> None:
    """Known not to work together."""
    assert _severities(_sides({"engine": "vllm"}, {})) == {"PD1014": "error"}
    assert _severities(pair(manifest("prefill", 4), manifest("decode", 1, engine="vllm"))) == {"PD1014": "error"}


@pytest.mark.code("PD1022")
def test_backends() -> None:
    """Refused, unless the question is about one backend; a connector's name is its library's."""
    assert _severities(_sides({"backend": "nixl"}, {})) == {"PD1022": "error"}
    assert findings(pair(manifest("prefill", backend="nixl"), None, "mooncake")) == {}
    vllm = {"engine": "vllm", "version": "0.32.0"}
    assert findings(_sides(vllm | {"backend": "NixlConnector"}, vllm | {"backend": "nixl"})) == {}


def _stages(count: int) -> tuple[Stage, ...]:
    step = 4 // count
    return tuple(
        Stage(i, (i * step, i * step + step), (kv(1, range(i * step, i * step + step)),)) for i in range(count)
    )


@pytest.mark.code("PD1006")
@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "severity"),
    [
        ("sglang", 2, 1, None),
        ("sglang", 2, 2, None),
        ("sglang", 1, 2, "error"),
        ("sglang", 4, 2, "error"),
        ("reference", 1, 2, None),
        ("reference", 4, 2, None),
        ("vllm", 2, 2, None),
        ("vllm", 2, 1, "warning"),
    ],
)
def test_pipeline_sizes(engine: str, prefill: int, decode: int, severity: str | None) -> None:
    """SGLang's decode PP is 1 or the prefill's; the reference engine pairs any."""
    sides = [manifest(r, stages=_stages(n), engine=engine) for r, n in (("prefill", prefill), ("decode", decode))]
    assert _severities(pair(*sides)).get("PD1006") == severity


@pytest.mark.code("PD1006")
def test_decode_context_parallelism() -> None:
    """Prefill may have it, decode may not."""
    assert findings(_sides({"parallel": {"attn_cp": 2}}, {})) == {}
    assert _severities(_sides({}, {"parallel": {"attn_cp": 2}})) == {"PD1006": "error"}


def test_sizes_of_a_stranger_make_the_verdict_unknown() -> None:
    """What an engine that nobody has read can pair is not a pass."""
    sides = [manifest(r, stages=_stages(n), engine="other") for r, n in (("prefill", 2), ("decode", 1))]
    assert skips(pair(*sides))["pipeline"].needed


@pytest.mark.code("PD1015")
@pytest.mark.parametrize(
    ("prefill", "decode", "severity"),
    [
        (None, {"algorithm": "EAGLE"}, "info"),
        ({"algorithm": "EAGLE"}, None, "error"),
        ({"algorithm": "EAGLE", "num_steps": 3}, {"algorithm": "EAGLE", "num_steps": 5}, "info"),
        ({"algorithm": "EAGLE"}, {"algorithm": "EAGLE"}, None),
    ],
)
def test_speculation(prefill: dict[str, Any] | None, decode: dict[str, Any] | None, severity: str | None) -> None:
    """Decode alone may speculate; settings may differ where the drafts' KV does not."""
    judged = _sides({"speculative": prefill}, {"speculative": decode})
    assert _severities(judged) == ({"PD1015": severity} if severity else {})


@pytest.mark.code("PD1015")
def test_vllm_hashes_speculative_settings() -> None:
    """Its handshake refuses what SGLang takes."""
    vllm = {"engine": "vllm", "version": "0.32.0", "backend": "nixl"}
    assert _severities(_sides(vllm, vllm | {"speculative": {"method": "mtp"}})) == {"PD1015": "error"}


@pytest.mark.code("PD1005")
@pytest.mark.parametrize(
    ("algorithm", "mla", "prefill", "decode", "refused"),
    [
        ("DFLASH", False, (4, 1), (4, 1), False),
        ("DFLASH", False, (4, 1), (2, 1), True),
        ("DFLASH", True, (4, 1), (2, 1), True),
        ("DFLASH", True, (4, 2), (4, 1), True),
        ("DFLASH", True, (4, 2), (8, 1), False),
        ("DSPARK", True, (4, 1), (2, 1), True),
        ("DSPARK", True, (4, 2), (8, 1), False),
        ("DSPARK", True, (4, 2), (4, 1), False),
        ("DSPARK", False, (4, 2), (8, 1), True),
        ("EAGLE", True, (4, 1), (2, 1), False),
    ],
)
def test_drafts_that_are_sent_rank_to_rank(
    algorithm: str, mla: bool, prefill: tuple[int, int], decode: tuple[int, int], refused: bool
) -> None:
    """(attention TP, CP) of each side. Even MLA, whose KV pairs at any ratio, does not help the drafts."""
    sides = (
        manifest(
            role,
            tp,
            parts=(mla_kv(range(4)),) if mla else (kv(tp, range(4)),),
            parallel={"attn_cp": cp},
            speculative={"algorithm": algorithm},
        )
        for role, (tp, cp) in (("prefill", prefill), ("decode", decode))
    )
    assert _severities(pair(*sides)) == ({"PD1005": "error"} if refused else {})


def test_attention_dp_does_not_count() -> None:
    """TP 8 with DP 2 is the TP 4 layout, for drafts too."""
    spec = {"speculative": {"algorithm": "DFLASH"}}
    assert findings(pair(manifest("prefill", 4, parallel={"dp": 2}, **spec), manifest("decode", 4, **spec))) == {}


def test_every_finding_names_both_values_and_their_origin() -> None:
    """A finding about a value shows it on both sides."""
    judged = _sides({"kv_cache_dtype": "auto", "kv_layout": "hnd", "page_size": 32, "version": "0"}, {})
    for finding in findings(judged).values():
        assert [evidence.source for evidence in finding.evidence[:2]] == ["prefill", "decode"], finding.code


def test_messages_have_no_holes() -> None:
    """Every template's parameters are given by the rule that uses it."""
    judged = _sides({"kv_cache_dtype": "auto", "backend": "nixl", "engine": "vllm", "page_size": 32}, {"page_size": 64})
    for finding in findings(judged).values():
        said = words(finding)
        assert "{" not in said.message + said.why + said.action
    assert outcomes(judged)
