"""`pdctl check` on fleet files: pools derived, replicas listed, values with their lines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main

DENSE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_hidden_layers": 4,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "torch_dtype": "bfloat16",
}
HEAD = """\
schema: pdctl.fleet/v1
name: fleet
model: {path: model}
engine: sglang
transfer: {backend: mooncake, protocol: tcp}
"""
OPEN = "PD2016"
"""Said of every fleet over Mooncake, and no part of what is tested here."""
CONTRACTS = Path(__file__).resolve().parents[2] / "data" / "contracts"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a fleet file beside a model's config, and works in their folder."""
    monkeypatch.chdir(tmp_path)

    def write(pools: str, config: dict[str, Any] | str = DENSE, name: str = "fleet.yaml", head: str = HEAD) -> str:
        (tmp_path / "model").mkdir(exist_ok=True)
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "model" / "config.json").write_text(text)
        (tmp_path / name).write_text(head + pools)
        return name

    return write


def _check(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    status = main(["check", *args, "-o", "json"])
    captured = capsys.readouterr()
    assert captured.out, captured.err
    report = json.loads(captured.out)
    return status, report | {"findings": [one for one in report["findings"] if one["code"] != OPEN]}


def _codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"]}


def test_every_replica_is_listed_and_judged_once(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """1,024 pairs, and no more rules than for one."""
    name = fleet(
        "prefill: {replicas: 32, attn_tp: 4, page_size: 64}\ndecode: {replicas: 32, attn_tp: 8, page_size: 64}\n"
    )
    status, report = _check(capsys, name)
    assert status == 0
    assert len({(pair["prefill"], pair["decode"]) for pair in report["pairs"]}) == 1024
    assert report["summary"]["held"] < 40


@pytest.mark.code("PD1001")
def test_a_pool_with_another_page_size_is_one_culprit_with_its_line(
    fleet: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The good pool's pairs fit; the bad one's are refused, with one finding that names both lines."""
    name = fleet(
        "prefill: {replicas: 2, page_size: 64}\n"
        "decode:\n"
        "  - {name: good, replicas: 2, page_size: 64}\n"
        "  - {name: bad, replicas: 2, page_size: 32}\n"
    )
    status, report = _check(capsys, name)
    assert status == 3
    refused = {pair["decode"] for pair in report["pairs"] if pair["verdict"] == "refused"}
    assert refused == {"bad-0", "bad-1"}
    [finding] = report["findings"]
    assert finding["subject"] == "prefill-0…1 → bad-0…1"
    assert [evidence["source"] for evidence in finding["evidence"]] == ["fleet.yaml:6", "fleet.yaml:9"]


@pytest.mark.code("PD1001")
def test_equal_pools_are_judged_once_and_each_shows_its_line(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pools with the same wrong size: one finding, both lines, so that both are mended at once."""
    name = fleet("prefill:\n  - {name: one, page_size: 32}\n  - {name: two, page_size: 32}\ndecode: {page_size: 64}\n")
    _, report = _check(capsys, name)
    [finding] = report["findings"]
    assert {"fleet.yaml:7", "fleet.yaml:8", "fleet.yaml:9"} == {e["source"] for e in finding["evidence"]}
    assert finding["subject"] == "one-0, two-0 → decode-0"


@pytest.mark.code("PD1002")
def test_a_flag_in_args_is_the_origin(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Engine flags passed through count, and are named as they were spelled."""
    name = fleet(
        "prefill: {page_size: 64, args: [--kv-cache-dtype, bfloat16]}\n"
        "decode: {page_size: 64, args: [--kv-cache-dt=fp8_e4m3]}\n"
    )
    status, report = _check(capsys, name)
    assert (status, _codes(report)) == (3, {"PD1002"})
    [finding] = report["findings"]
    assert [one["source"] for one in finding["evidence"]] == [
        "fleet.yaml:6 --kv-cache-dtype",
        "fleet.yaml:7 --kv-cache-dt",
    ]


@pytest.mark.code("PD1004")
def test_what_would_not_start_is_a_finding(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight heads over three ranks: the layout command refuses, the check says which pool and exits 3."""
    name = fleet("prefill: {attn_tp: 3, page_size: 64}\ndecode: {attn_tp: 1, page_size: 64}\n")
    status, report = _check(capsys, name)
    assert (status, _codes(report)) == (3, {"PD1004"})
    assert report["pairs"][0]["verdict"] == "refused"
    assert report["findings"][0]["subject"] == "prefill-0"


@pytest.mark.code("PD1001")
def test_page_sizes_that_default_differently_by_role(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """On SM100 SGLang gives Qwen3-Next page 1 on prefill and 64 on decode; on Hopper the defaults agree."""
    config = {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "torch_dtype": "bfloat16",
    }
    name = fleet("prefill: {attn_tp: 2}\ndecode: {attn_tp: 2}\n", config)
    status, report = _check(capsys, name, "--platform", "sm100")
    assert (status, _codes(report)) == (3, {"PD1001"})
    assert "page size 1 on prefill, 64 on decode" in report["findings"][0]["message"]
    assert _check(capsys, name, "--platform", "hopper")[0] == 0


def test_the_assumed_platform_is_said(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """An assumption that shapes a verdict stands in the report."""
    name = fleet("prefill: {page_size: 64}\ndecode: {page_size: 64}\n")
    assert any("hopper" in note for note in _check(capsys, name)[1]["notes"])


@pytest.mark.code("PD1013")
def test_a_fleet_and_a_manifest(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Will this decode engine fit beside those? Every prefill against every decode of both."""
    name = fleet("prefill: {page_size: 16, attn_tp: 2}\ndecode: {page_size: 16}\n")
    status, report = _check(capsys, name, str(CONTRACTS / "dense-decode-tp8.json"))
    assert status == 3
    verdicts = {pair["decode"]: pair["verdict"] for pair in report["pairs"]}
    assert verdicts == {"decode-0": "fits", "dense-decode-tp8": "refused"}
    assert "PD1013" in _codes(report)


def test_two_fleets_with_the_same_names_are_told_apart(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Old and new during an upgrade: all four pairs, each name once."""
    old = fleet("prefill: {page_size: 64}\ndecode: {page_size: 64}\n", name="old.yaml")
    new = fleet("prefill: {page_size: 64}\ndecode: {page_size: 64, attn_tp: 2}\n", name="new.yaml")
    status, report = _check(capsys, old, new)
    assert status == 0
    names = {(pair["prefill"], pair["decode"]) for pair in report["pairs"]}
    assert len(names) == 4
    assert ("old.yaml:prefill-0", "new.yaml:decode-0") in names


def test_sarif_of_a_fleet_names_file_and_line(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What a code-scanning view needs to mark the line in a pull request."""
    main(["check", fleet("prefill: {page_size: 64}\ndecode: {page_size: 32}\n"), "-o", "sarif"])
    results = json.loads(capsys.readouterr().out)["runs"][0]["results"]
    [result] = [one for one in results if one["ruleId"] != OPEN]
    places = [location["physicalLocation"] for location in result["locations"]]
    assert [(p["artifactLocation"]["uri"], p["region"]["startLine"]) for p in places] == [
        ("fleet.yaml", 6),
        ("fleet.yaml", 7),
    ]


@pytest.mark.code("PD0022")
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "config.json"),
        ("[]", "config.json"),
        ("[" * 100_000, "config.json"),
        ({**DENSE, "num_key_value_heads": "8"}, "num_key_value_heads"),
        ({**DENSE, "num_hidden_layers": -1}, "num_hidden_layers"),
    ],
)
def test_a_config_that_is_not_understood_is_unusable_input(
    fleet: Any, capsys: pytest.CaptureFixture[str], config: dict[str, Any] | str, says: str
) -> None:
    """Exit 2, with the file or the key; never a traceback, never a guess."""
    assert main(["check", fleet("prefill: {page_size: 64}\ndecode: {page_size: 64}\n", config)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert "unexpected" not in captured.err


def test_a_model_that_is_not_here(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with the fleet file's line, and the way out: --model."""
    head = HEAD.replace("{path: model}", "{path: /models/elsewhere}")
    name = fleet("prefill: {page_size: 64}\ndecode: {page_size: 64}\n", head=head)
    assert main(["check", name]) == 2
    err = capsys.readouterr().err
    assert "fleet.yaml:3" in err
    assert "--model DIR" in err
    assert main(["check", name, "--model", "model"]) == 0


@pytest.mark.code("PD0011", "PD3104")
@pytest.mark.parametrize(
    ("path", "engine", "code", "says", "hint"),
    [
        ("/models/elsewhere", "sglang", "PD0011", "no model at /models/elsewhere: no such folder", "--model DIR"),
        ("./modle", "sglang", "PD0011", "no such folder", "did you mean model?"),
        ("builtin:tiny-hybird", "reference", "PD3104", "cannot serve", "did you mean builtin:tiny-hybrid?"),
        ("builtin:tiny-lama", "sglang", "PD3104", "cannot serve", "did you mean builtin:tiny-llama?"),
        ("builtin:nothing", "vllm", "PD3104", "vllm cannot serve builtin:nothing", "one of builtin:tiny-llama"),
    ],
)
def test_a_model_that_is_not_there_has_one_code_in_check_and_up(
    fleet: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    engine: str,
    code: str,
    says: str,
    hint: str,
) -> None:
    """With the line of the file and the nearest name."""
    head = HEAD.replace("{path: model}", f"{{path: '{path}'}}").replace("engine: sglang", f"engine: {engine}")
    name = fleet("prefill: {page_size: 64}\ndecode: {page_size: 64}\n", head=head)
    assert main(["check", name]) == 2
    checked = capsys.readouterr().err
    assert checked.startswith(f"error {code} fleet.yaml:3  ")
    assert says in checked
    assert hint in checked
    monkeypatch.setattr("pdctl.up.preflight._importable", lambda *_: True)
    monkeypatch.setattr("pdctl.up.preflight._loadable", lambda *_: True)
    assert main(["up", name]) == 2
    assert f"error {code} fleet.yaml:3  " in capsys.readouterr().err


@pytest.mark.code("PD0032", "PD0030")
@pytest.mark.parametrize(
    ("engine", "pool", "says"),
    [
        ("sglang", "{args: [--page-size]}", "PD0032 fleet.yaml:6  --page-size: a value is missing"),
        (
            "sglang",
            "{args: [--page-size, '-4']}",
            "PD0032 fleet.yaml:6 --page-size  found '-4', expected a whole number",
        ),
        ("sglang", "{args: [--dtype, float7]}", "PD0001 fleet.yaml:6 --dtype  found float7"),
        (
            "reference",
            "{args: [--dtype, '3']}",
            "PD0032 fleet.yaml:6  --dtype: found '3', expected one of float32, float64",
        ),
        ("reference", "{args: [--dtyp, float32]}", "PD0030 fleet.yaml:6  --dtyp: no such flag in the reference engine"),
        (
            "reference",
            "{kv_cache_dtype: float16}",
            "PD0001 fleet.yaml:6  found float16, expected one of float64, float32",
        ),
    ],
)
def test_a_wrong_value_is_told_at_its_line(
    fleet: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, engine: str, pool: str, says: str
) -> None:
    monkeypatch.setattr("pdctl.engines.refusals.installed_version", lambda *_: None)
    head = HEAD.replace("engine: sglang", f"engine: {engine}")
    if engine == "reference":
        head = head.replace("{path: model}", "{path: 'builtin:tiny-hybrid'}")
    assert main(["check", fleet(f"prefill: {pool}\ndecode: {{}}\n", head=head)]) == 2
    assert capsys.readouterr().err.startswith(f"error {says}")


@pytest.mark.code("PD1002")
def test_a_dtype_by_flag_is_the_flags_and_a_default_is_the_engines(
    fleet: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two values that both call themselves a default leave nobody the wiser."""
    head = HEAD.replace("engine: sglang", "engine: reference").replace("{path: model}", "{path: 'builtin:tiny-hybrid'}")
    name = fleet("prefill: {args: [--dtype, float32]}\ndecode: {}\n", head=head)
    _, report = _check(capsys, name)
    [finding] = [one for one in report["findings"] if one["code"] == "PD1002"]
    assert finding["evidence"][0]["source"] == "fleet.yaml:6 --dtype"
    assert finding["evidence"][1]["source"].startswith("default of pdctl ")


@pytest.mark.code("PD1001")
@pytest.mark.parametrize(("engine", "default"), [("sglang", "default of SGLang 0.5.23"), ("vllm", "default of vLLM")])
def test_what_nobody_said_is_the_default_of_the_engines_version(
    fleet: Any, capsys: pytest.CaptureFixture[str], engine: str, default: str
) -> None:
    """It changes with the engine's upgrade, not with pdctl's."""
    head = HEAD.replace("sglang", engine).replace("mooncake", "nixl")
    _, report = _check(capsys, fleet("prefill: {page_size: 64}\ndecode: {}\n", head=head))
    [finding] = [one for one in report["findings"] if one["code"] == "PD1001"]
    assert finding["evidence"][1]["source"].startswith(default)


def test_a_fleet_of_one_role(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to pair is unusable input, not a pass."""
    assert main(["check", fleet("prefill: {page_size: 64}\ndecode: {replicas: 0}\n")]) == 2
    assert "needs a decode side" in capsys.readouterr().err


def test_more_pairs_than_a_report_can_list(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """16 million pairs end at once, not in the memory of the machine."""
    name = fleet("prefill: {page_size: 64, replicas: 4096}\ndecode: {page_size: 64, replicas: 4096}\n")
    assert main(["check", name]) == 2
    assert "4096 × 4096 pairs, over the limit" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_static_check_imports_nothing_heavy(fleet: Any, tmp_path: Path, output: str) -> None:
    """A second before start must stay a second: no torch, numpy or httpx, nor rich."""
    name = fleet("prefill: {page_size: 64}\ndecode: {page_size: 32}\n")
    code = (
        "import sys; from pdctl.cli.app import main; "
        f"status = main(['check', {name!r}, '-o', {output!r}]); "
        "heavy = {'torch', 'numpy', 'httpx', 'rich', 'textual', 'zmq', 'mooncake', 'nixl'} & set(sys.modules); "
        "sys.stderr.write(f'{status} {sorted(heavy)}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == "3 []"


@pytest.mark.code("PD1027")
@pytest.mark.parametrize(
    ("prefill", "decode", "own", "severity"),
    [
        ("9217", None, 131072, "error"),
        ("9217", None, 9217, None),
        ("9217", None, None, "warning"),
        ("9217", "16384", 131072, "warning"),
        ("9217", "9217", 131072, None),
        (None, "9217", 131072, None),
        ("$LEN", None, 131072, None),
    ],
)
def test_decode_accepts_what_prefill_refuses(
    fleet: Any,
    capsys: pytest.CaptureFixture[str],
    prefill: str | None,
    decode: str | None,
    own: int | None,
    severity: str | None,
) -> None:
    """The request hangs to the client's timeout; a limit on decode alone, or an equal one, is no fault.

    Two stated limits are somebody's choice, and only requests between them fail.
    """
    first, second = (f", args: [--context-length, '{size}']" if size else "" for size in (prefill, decode))
    pools = f"prefill: {{page_size: 64{first}}}\ndecode: {{page_size: 64{second}}}\n"
    status, report = _check(capsys, fleet(pools, {**DENSE, "max_position_embeddings": own}))
    assert (status == 3) is (severity == "error")
    assert [(one["code"], one["severity"]) for one in report["findings"]] == (
        [("PD1027", severity)] if severity else []
    )
    verdicts = {"error": "refused", "warning": "fits with warnings", None: "fits"}
    assert report["pairs"][0]["verdict"] == verdicts[severity]


@pytest.mark.code("PD1028")
def test_a_fixed_engine_id(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Two replicas under one id; one replica under its own is right."""
    head = HEAD.replace("sglang", "vllm").replace("mooncake", "nixl")
    words, other = (
        f"""[--kv-transfer-config, '{{"kv_connector":"NixlConnector"{more}}}']""" for more in (',"engine_id":"a"', "")
    )

    def pools(replicas: int) -> str:
        decode = f"decode: {{page_size: 64, args: {other}}}\n"
        return f"prefill: {{page_size: 64, replicas: {replicas}, args: {words}}}\n{decode}"

    status, report = _check(capsys, fleet(pools(2), head=head))
    assert (status, _codes(report)) == (3, {"PD1028"})
    assert report["findings"][0]["evidence"][0]["source"].startswith("fleet.yaml:6")
    assert _check(capsys, fleet(pools(1), head=head))[0] == 0


MLA = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "torch_dtype": "bfloat16",
}


@pytest.mark.code("PD1005", "PD1006")
@pytest.mark.parametrize(
    ("config", "prefill", "decode", "code"),
    [
        (MLA, "attn_tp: 4, args: [--enable-kv-cache-sharding]", "attn_tp: 4", None),
        (MLA, "attn_tp: 4, args: [--enable-kv-cache-sharding]", "attn_tp: 2", "PD1005"),
        (MLA, "attn_tp: 4", "attn_tp: 2", None),
        (DENSE, "attn_tp: 4, args: [--enable-kv-cache-sharding]", "attn_tp: 2", None),
        (MLA, "attn_tp: 4", "attn_tp: 4, args: [--dcp-size, '4']", None),
        (DENSE, "attn_tp: 4", "attn_tp: 4, args: [--dcp-size, '4']", "PD1006"),
        (DENSE, "attn_tp: 4", "attn_tp: 4, args: [--dcp-size=1]", None),
        (MLA, "attn_tp: 4, cp: 2", "attn_tp: 4, args: [--decode-context-parallel-size, '4']", "PD1006"),
        (MLA, "attn_tp: 4, args: [--enable-kv-cache-sharding]", "attn_tp: 4, args: [--dcp-size=4]", "PD1006"),
    ],
)
def test_kv_sharded_by_flags(
    fleet: Any, capsys: pytest.CaptureFixture[str], config: dict[str, Any], prefill: str, decode: str, code: str | None
) -> None:
    """What SGLang asserts at the first request, and the manifest does not show."""
    pools = f"prefill: {{page_size: 64, {prefill}}}\ndecode: {{page_size: 64, {decode}}}\n"
    _, report = _check(capsys, fleet(pools, config))
    assert _codes(report) == ({code} if code else set())
    assert report["pairs"][0]["verdict"] == ("refused" if code else "fits")


def test_pools_with_other_flags_are_judged_apart(fleet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal layouts, but only one of the two has a context limit: only its pair is refused."""
    pools = (
        "prefill:\n"
        "  - {name: free, page_size: 64}\n"
        "  - {name: bound, page_size: 64, args: [--context-length, '100']}\n"
        "decode: {page_size: 64}\n"
    )
    _, report = _check(capsys, fleet(pools, {**DENSE, "max_position_embeddings": 4096}))
    assert {pair["prefill"]: pair["verdict"] for pair in report["pairs"]} == {"free-0": "fits", "bound-0": "refused"}


def test_one_file_given_twice_has_two_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Four pairs of one name could not be told apart."""
    assert main(["check", "examples/tiny-hybrid.yaml", "examples/tiny-hybrid.yaml", "-o", "json"]) == 0
    pairs = [(pair["prefill"], pair["decode"]) for pair in json.loads(capsys.readouterr().out)["pairs"]]
    assert len(set(pairs)) == 4
    assert ("tiny-hybrid.yaml#1:prefill-0", "tiny-hybrid.yaml#2:decode-0") in pairs
