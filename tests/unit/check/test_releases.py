"""Which engine release a verdict holds for: what states it, what is outside of the known range, and who is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.versions import PINNED, image_version, in_range, known_range
from tests.unit.derive.models import QWEN3 as DENSE

SLIDING = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "torch_dtype": "bfloat16",
}
HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "full_attention_interval": 4,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Checks a fleet of these pools; its exit status and its report, or its text in another form."""
    monkeypatch.chdir(tmp_path)

    def run(
        prefill: str, decode: str, *, config: dict[str, Any] = SLIDING, head: str = "", engine: str = "sglang",
        backend: str = "nixl", form: str = "json",
    ) -> tuple[int, Any]:  # fmt: skip
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        (tmp_path / "fleet.yaml").write_text(
            f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: model}}\nengine: {engine}\n{head}"
            f"transfer: {{backend: {backend}}}\nprefill: {{{prefill}}}\ndecode: {{{decode}}}\n"
        )
        status = main(["check", "fleet.yaml", "-o", form])
        out = capsys.readouterr()
        assert out.out, out.err
        return status, json.loads(out.out) if form == "json" else out.out

    return run


def _codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


@pytest.mark.code("PD1005")
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("image: 'lmsysorg/sglang:v0.5.21-cu129'", "image: 'lmsysorg/sglang:v0.5.22'"),
        ("engine_version: 0.5.21", "engine_version: 0.5.22"),
        ("engine_version: 0.5.16.post1", "engine_version: 0.5.22.post1"),
    ],
)
def test_a_rule_knows_the_release_that_brought_an_ability(judged: Any, old: str, new: str) -> None:
    """Sliding layers across unequal TP: refused before 0.5.22 with the line that says the version, and fine with it."""
    status, report = judged(f"attn_tp: 1, {old}", f"attn_tp: 2, {old}")
    assert (status, _codes(report)) == (3, {"PD1005"})
    assert "before 0.5.22" in report["findings"][0]["message"]
    assert "fleet.yaml:6" in {evidence["source"] for evidence in report["findings"][0]["evidence"]}
    status, report = judged(f"attn_tp: 1, {new}", f"attn_tp: 2, {new}")
    assert (status, _codes(report)) == (0, set())
    assert judged(f"attn_tp: 2, {old}", f"attn_tp: 2, {old}")[0] == 0


@pytest.mark.code("PD1047")
def test_a_release_that_does_not_move_a_state_at_all(judged: Any) -> None:
    """Equal TP: pages arrive, recurrent state does not, and nothing raises; over mooncake it always did."""
    old = "engine_version: 0.5.8"
    status, report = judged(old, old, config=HYBRID)
    assert (status, _codes(report)) == (3, {"PD1047"})
    assert judged(old, old, config=HYBRID, backend="mooncake")[0] == 0
    assert judged("engine_version: 0.5.9", "engine_version: 0.5.9", config=HYBRID)[0] == 0


def test_every_report_names_the_release(judged: Any) -> None:
    """In words and for machines; one line for what both sides run, a line each where they differ."""
    version = "engine_version: 0.5.22"
    for form in ("table", "short", "junit", "sarif"):
        _, text = judged(version, version, form=form)
        assert "SGLang 0.5.22 (fleet.yaml:6, fleet.yaml:7 engine_version)" in text
    _, report = judged(version, version)
    [one] = report["judged_for"]
    assert (one["engine"], one["version"], one["stated"]) == ("sglang", "0.5.22", "0.5.22")
    _, text = judged(version, "engine_version: 0.5.23", form="short")
    assert "judged for SGLang 0.5.22 for prefill" in text
    assert "judged for SGLang 0.5.23 for decode" in text


def test_nothing_stated_is_the_pinned_release_and_said_so(judged: Any) -> None:
    """No finding: most files say nothing."""
    status, text = judged("", "", form="table")
    assert status == 0
    assert f"judged for SGLang {PINNED['sglang']} (no version is stated)" in text


@pytest.mark.code("PD1046")
@pytest.mark.parametrize("version", ["0.4.9", "0.6.0", "0.5.23rc1"])
def test_outside_of_the_known_range_is_a_warning_once(judged: Any, version: str) -> None:
    """However many pools state it; the verdict is one for the release that is known."""
    stated = f"engine_version: {version}"
    status, report = judged(stated, stated, backend="mooncake")
    assert status == 0
    [finding] = [one for one in report["findings"] if one["code"] != "PD2016"]
    assert (finding["code"], finding["severity"]) == ("PD1046", "warning")
    assert [evidence["source"] for evidence in finding["evidence"]] == ["fleet.yaml:6", "fleet.yaml:7"]
    [one] = report["judged_for"]
    assert (one["version"], one["stated"]) == (PINNED["sglang"], version)


@pytest.mark.parametrize("version", ["0.5.5", "0.5.24"])
@pytest.mark.parametrize(
    ("sizes", "rule"), [(("attn_tp: 1", "attn_tp: 2"), "unequal_tp"), (("pp: 2", "pp: 2"), "pipeline")]
)
def test_outside_of_the_known_range_what_depends_on_the_release_is_unknown(
    judged: Any, version: str, sizes: tuple[str, str], rule: str
) -> None:
    """With the reason, on either side of the range; a page size that differs is refused all the same."""
    stated = f"engine_version: {version}"
    status, report = judged(*(f"{size}, {stated}" for size in sizes), config=DENSE)
    assert (status, [pair["verdict"] for pair in report["pairs"]]) == (3, ["unknown"])
    [skip] = [skip for skip in report["skipped"] if skip["rule"] == rule]
    assert f"SGLang {version} is none of the releases" in skip["reason"]
    pages = [f"{size}, {stated}, page_size: {page}" for size, page in zip(sizes, (64, 32), strict=True)]
    assert judged(*pages, config=DENSE)[1]["pairs"][0]["verdict"] == "refused"
    assert judged(*sizes, config=DENSE)[0] == 0


PUSH = """args: [--kv-transfer-config, '{"kv_connector":"NixlPushConnector","kv_role":"kv_producer"}']"""
PULL = """args: [--kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}']"""


@pytest.mark.code("PD1036")
@pytest.mark.parametrize(
    ("version", "verdict", "said"),
    [
        ("0.27.0", "refused", "the handshake passes"),
        ("0.28.0", "refused", "vLLM's NIXL handshake refuses"),
        ("0.34.0", "unknown", "vLLM 0.34.0 is none"),
    ],
)
def test_a_factor_of_the_handshake_has_its_releases(judged: Any, version: str, verdict: str, said: str) -> None:
    """Push and pull are told apart by the hash since 0.28; before, both wait for each other."""
    sides = [f"engine_version: {version}, {words}" for words in (PUSH, PULL)]
    _, report = judged(*sides, engine="vllm", config=DENSE)
    assert [pair["verdict"] for pair in report["pairs"]] == [verdict]
    assert said in json.dumps([report["findings"], report["skipped"]])


def test_decode_that_is_told_not_to_compare_hashes_compares_none(judged: Any) -> None:
    """Another attention backend is then no refusal of the handshake."""
    off = '"kv_connector_extra_config":{"enforce_handshake_compat":false}'
    backends = [f"--attention-backend, {name}, " for name in ("FLASH_ATTN", "FLASHINFER")]
    decode = PULL.replace("}'", f",{off}}}'").replace("[", f"[{backends[1]}")
    prefill = PULL.replace("kv_consumer", "kv_producer").replace("[", f"[{backends[0]}")
    _, report = judged(prefill, decode, engine="vllm", config=DENSE)
    assert "PD1036" not in _codes(report)
    _, report = judged(prefill, PULL.replace("[", f"[{backends[1]}"), engine="vllm", config=DENSE)
    assert "PD1036" in _codes(report)


@pytest.mark.code("PD1046")
def test_an_image_that_tells_no_version_is_said_and_compared_with_nothing(judged: Any) -> None:
    """A nightly beside a release: not "the same version on both sides", and not a difference either."""
    status, report = judged("image: 'lmsysorg/sglang:nightly-dev'", "engine_version: 0.5.23")
    assert status == 0
    assert [(f["code"], f["severity"]) for f in report["findings"]] == [("PD1046", "info")]
    assert "engine_version" in {skip["rule"] for skip in report["skipped"]}


def test_the_nearest_statement_wins(judged: Any, tmp_path: Path) -> None:
    """A pool's version before the fleet's, a stated one before the image's tag, the tag before the environment."""
    (tmp_path / "env/lib/python3.11/site-packages/sglang-0.5.20+cu129.dist-info").mkdir(parents=True)
    cases = {
        "engine_version: 0.5.21, image: 'lmsysorg/sglang:v0.5.22', environment: env": "0.5.21",
        "image: 'lmsysorg/sglang:v0.5.22', environment: env": "0.5.22",
        "environment: env": "0.5.20",
    }
    for pool, version in cases.items():
        _, report = judged(pool, pool)
        assert [one["stated"] for one in report["judged_for"]] == [version]
    _, report = judged("engine_version: 0.5.21", "", head="engine_version: 0.5.19\n")
    assert [one["stated"] for one in report["judged_for"]] == ["0.5.21", "0.5.19"]


@pytest.mark.code("PD1014")
def test_versions_that_differ_are_compared(judged: Any) -> None:
    """vLLM's handshake refuses another version; the file's lines are shown."""
    status, report = judged("engine_version: 0.31.0", "engine_version: 0.32.0", engine="vllm", config=HYBRID)
    assert status == 3
    [finding] = [finding for finding in report["findings"] if finding["code"] == "PD1014"]
    assert {"fleet.yaml:6", "fleet.yaml:7"} == {evidence["source"] for evidence in finding["evidence"]}


@pytest.mark.code("PD0004")
@pytest.mark.parametrize("value", ["0.30", "latest", "''", "[0.5.1]"])
def test_a_version_is_text_that_begins_with_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    """`0.30` is the number 0.3 in YAML: refused, not judged as another version."""
    (tmp_path / "fleet.yaml").write_text(
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: vllm\nengine_version: {value}\n"
        "prefill: {}\ndecode: {}\n"
    )
    assert main(["check", str(tmp_path / "fleet.yaml")]) == 2
    assert "engine_version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "image", "version"),
    [
        ("sglang", "lmsysorg/sglang:v0.5.16", "0.5.16"),
        ("sglang", "registry.example:5000/mirror/lmsysorg/sglang:v0.5.15.post1-cu130", "0.5.15.post1"),
        ("sglang", "lmsysorg/sglang:v0.5.9-blackwell", "0.5.9"),
        ("vllm", "vllm/vllm-openai:v0.24.0", "0.24.0"),
        ("vllm", "vllm/vllm-openai:v0.24.0-x86_64@sha256:aa", "0.24.0"),
        ("sglang", "lmsysorg/sglang:latest", None),
        ("sglang", "lmsysorg/sglang:nightly-dev-20260101-0ab1", None),
        ("sglang", "lmsysorg/sglang:v0.5.24rc1", None),
        ("sglang", "lmsysorg/sglang:v0.5.24.dev3", None),
        ("sglang", "lmsysorg/sglang@sha256:aa", None),
        ("sglang", "registry.example:5000/sglang", None),
        ("sglang", "ai-dynamo/sglang-runtime:0.7.0", None),
        ("vllm", "ai-dynamo/vllm-runtime:0.8.1", None),
        ("vllm", "lmsysorg/sglang:v0.5.16", None),
    ],
)
def test_tags_of_the_engines_own_images(engine: str, image: str, version: str | None) -> None:
    """Others count their own releases in their tags: those tell nothing about the engine."""
    assert image_version(engine, image) == version


@pytest.mark.parametrize("engine", PINNED)
def test_the_pinned_release_lies_in_the_range(engine: str) -> None:
    """And a later patch of the newest release counts as it."""
    first, last = known_range(engine)
    assert all(in_range(engine, version) for version in (PINNED[engine], first, last, f"{last}.post1"))
    assert not in_range(engine, "99.0.0")
