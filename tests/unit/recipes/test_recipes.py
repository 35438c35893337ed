"""Published launch recipes into fleets: each form, a healthy launch, a faulty one, nothing dropped in silence."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.check import Options, check_fleet
from pdctl.errors import InputError
from pdctl.fleet import parse_fleet
from pdctl.recipes import convert, variants
from pdctl.report import Report

TOOL = Path(__file__).parents[3] / "tools" / "check_recipes.py"
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "head_dim": 64,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
SGLANG = """
name: "Two to one, DP attention"
model: {path: qwen3-32b, container: "lmsysorg/sglang:v0.5.22", precision: bf16}
slurm: {time_limit: "1:00:00"}
resources: {gpu_type: h200, gpus_per_node: 2, prefill_nodes: 4, decode_nodes: 1, prefill_workers: 2, decode_workers: 1}
backend:
  type: sglang
  prefill_environment: {UCX_TLS: all}
  sglang_config:
    prefill:
      model-path: /model/
      served-model-name: qwen
      disaggregation-mode: prefill
      disaggregation-transfer-backend: nixl
      disaggregation-bootstrap-port: 30001
      tensor-parallel-size: 4
      dp-size: 2
      enable-dp-attention: true
      page-size: 64
      max-running-requests: 64
    decode:
      served-model-name: qwen
      disaggregation-mode: decode
      disaggregation-transfer-backend: nixl
      disaggregation-bootstrap-port: 30001
      tp-size: 2
      page-size: 64
      enable-symm-mem: false
frontend: {type: dynamo, args: {router-mode: kv}}
"""
VLLM = """
name: one-to-one
model: {path: qwen3-32b, container: cluster-alias}
identity: {frameworks: {vllm: "0.30.0", dynamo: "1.0.0"}}
environment: {PYTHONHASHSEED: "0"}
resources: {gpu_type: gb200, prefill_nodes: 1, decode_nodes: 1, prefill_workers: 1, decode_workers: 1}
backend:
  type: vllm
  connector: null
  vllm_config:
    prefill: &settings
      kv-transfer-config: '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
      tensor-parallel-size: 2
      block-size: 32
      max_num_batched_tokens: 1024
      compilation-config: {mode: 0}
    decode: {<<: *settings, data-parallel-size: 2}
"""
SEVERAL = """
base:
  name: several
  model: {path: qwen3-32b}
  resources: {gpu_type: b200, prefill_workers: 1, decode_workers: 1}
  backend:
    sglang_config:
      prefill: {tp-size: 2, chunked-prefill-size: 8192}
      decode: {tp-size: 2}
override_plain: {backend: {sglang_config: {prefill: {chunked-prefill-size: null}}}}
zip_override_sizes:
  name: [small, large]
  resources: {decode_workers: [1, 3], prefill_workers: [2]}
  backend: {sglang_config: {decode: {tp-size: [1, 4]}}}
"""


def _launches(text: str) -> list[Any]:
    return [convert(one) for _, one in variants(yaml.safe_load(text))]


def _checked(fleet: Any, tmp_path: Path) -> Report:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    loaded = parse_fleet(json.dumps(fleet, indent=1).encode(), tmp_path / "fleet.yaml")
    return check_fleet(loaded, Options(model=tmp_path))


def test_sglangs_sizes_become_fields_and_the_rest_flags() -> None:
    """TP 4 under attention DP 2 is attn_tp 2; what names role, port and transfer has a place of its own."""
    (one,) = _launches(SGLANG)
    assert one.platform == "hopper"
    image = "lmsysorg/sglang:v0.5.22"
    assert one.fleet == {
        "schema": "pdctl.fleet/v1",
        "name": "two-to-one-dp-attention",
        "model": {"path": "qwen3-32b", "name": "qwen"},
        "engine": "sglang",
        "transfer": {"backend": "nixl"},
        "router": {"kind": "dynamo", "args": ["--router-mode", "kv"]},
        "prefill": {
            "replicas": 2,
            "nodes": 2,
            "image": image,
            "ports": {"bootstrap": 30001},
            "page_size": 64,
            "attn_tp": 2,
            "dp": 2,
            "args": ["--enable-dp-attention", "--max-running-requests", "64"],
            "env": {"UCX_TLS": "all"},
        },
        "decode": {"replicas": 1, "image": image, "page_size": 64, "attn_tp": 2},
    }


@pytest.mark.parametrize(
    ("front", "router", "left"),
    [
        ("", {"kind": "dynamo"}, []),
        ("frontend: {num_additional_frontends: 8, env: {A: 1}, args: {router-mode: kv, no-kv-events: true}}",
         {"kind": "dynamo", "args": ["--router-mode", "kv", "--no-kv-events"], "env": {"A": "1"}},
         ["frontend.num_additional_frontends"]),
        ("frontend: {type: sglang, args: {policy: cache_aware, dp-aware: null}}",
         {"kind": "sglang-router", "args": ["--policy", "cache_aware"]}, ["frontend.args.dp-aware"]),
        ("frontend: {type: smg}", {"kind": "smg"}, []),
        ("frontend: {type: tilert}", {"kind": "tilert"}, []),
    ],
)  # fmt: skip
def test_what_stands_before_the_engines_is_the_router(front: str, router: Any, left: list[str], tmp_path: Path) -> None:
    """Dynamo where nothing is named; one that pdctl does not know is said to be not judged."""
    (one,) = _launches(SGLANG.replace("frontend: {type: dynamo, args: {router-mode: kv}}", front))
    assert one.fleet["router"] == router
    assert [each.key for each in one.left if each.key.startswith("frontend")] == left
    report = _checked(one.fleet, tmp_path)
    assert report.ok
    assert any(skip.rule == "router" for skip in report.skipped) == (router["kind"] == "tilert")


def test_no_line_is_dropped_in_silence() -> None:
    """Every line that the fleet does not hold is named, once, with its reason."""
    (one,) = _launches(SGLANG)
    assert sorted(left.key for left in one.left) == [
        "backend.sglang_config.decode.disaggregation-bootstrap-port",
        "backend.sglang_config.decode.enable-symm-mem",
        "backend.sglang_config.prefill.model-path",
        "model.precision",
        "slurm.time_limit",
    ]
    assert all(left.why for left in one.left)


@pytest.mark.parametrize(
    ("resources", "nodes", "left"),
    [
        ({"decode_nodes": 4, "decode_workers": 2}, 2, []),
        ({"decode_nodes": 1, "decode_workers": 4}, 1, []),
        ({"decode_nodes": 0, "decode_workers": 2}, 1, []),
        # what an engine takes goes before how many nodes there are
        ({"decode_nodes": 4, "decode_workers": 1, "gpus_per_node": 4, "gpus_per_decode": 8}, 2, []),
        ({"decode_nodes": 3, "decode_workers": 2}, 1, ["decode engine", "resources.decode_nodes"]),
    ],
)
def test_nodes_of_an_engine(resources: dict[str, int], nodes: int, left: list[str]) -> None:
    document = yaml.safe_load(SGLANG)
    document["resources"] = {"prefill_workers": 1, **resources}
    one = convert(document)
    assert one.fleet["decode"].get("nodes", 1) == nodes
    assert sorted(each.key for each in one.left if "decode engine" in each.key or "resources" in each.key) == left


@pytest.mark.parametrize(
    ("text", "role", "fields"),
    [
        (SGLANG.replace("dp-size: 2", "dp-size: 2\n      expert-parallel-size: 4"), "prefill", {"ep": 4}),
        (VLLM.replace("block-size: 32", "enable-expert-parallel: true"), "decode", {"ep": 4}),
        (VLLM.replace("block-size: 32", "enable-expert-parallel: true"), "prefill", {"ep": 2}),
        (
            VLLM.replace("decode_nodes: 1", "decode_nodes: 2").replace(
                "size: 2}", "size: 4, data-parallel-hybrid-lb: true}"
            ),
            "decode",
            {"nodes": 2, "dp": 4, "load_balancing": "hybrid"},
        ),
    ],
)
def test_experts_and_balancing_are_fields(text: str, role: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """vLLM's switch takes all ranks; the flag of a field is not given twice."""
    (one,) = _launches(text)
    pool = one.fleet[role]
    assert {name: pool.get(name) for name in fields} == fields
    assert not {"--expert-parallel-size", "--enable-expert-parallel", "--data-parallel-hybrid-lb"} & set(pool["args"])
    assert _checked(one.fleet, tmp_path).ok


def test_vllms_connector_names_the_transfer_and_stays_a_flag() -> None:
    """Both roles keep the connector that they state; the release is the recipe's own word."""
    (one,) = _launches(VLLM)
    connector = ["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}']
    args = [*connector, "--max-num-batched-tokens", "1024", "--compilation-config", '{"mode": 0}']
    assert one.platform == "sm100"
    assert one.fleet["engine_version"] == "0.30.0"
    assert one.fleet["transfer"] == {"backend": "nixl"}
    assert one.fleet["decode"] == {
        "replicas": 1,
        "image": "cluster-alias",
        "attn_tp": 2,
        "dp": 2,
        "page_size": 32,
        "args": args,
        "env": {"PYTHONHASHSEED": "0"},
    }
    assert [left.key for left in one.left if left.key.startswith("identity")] == ["identity.frameworks.dynamo"]


def test_overrides_are_launches_of_their_own() -> None:
    """One for `override_…`, one a place of the lists of `zip_override_…`; null takes a flag away."""
    labels = [label for label, _ in variants(yaml.safe_load(SEVERAL))]
    plain, small, large = _launches(SEVERAL)
    assert labels == ["override_plain", "zip_override_sizes[0]", "zip_override_sizes[1]"]
    assert "args" not in plain.fleet["prefill"]
    sizes = [
        (one.fleet["name"], one.fleet["decode"]["replicas"], one.fleet["decode"]["attn_tp"]) for one in (small, large)
    ]
    assert sizes == [("small", 1, 1), ("large", 3, 4)]
    assert large.fleet["prefill"]["replicas"] == 2


@pytest.mark.parametrize("text", [SGLANG, VLLM, SEVERAL])
def test_a_healthy_recipe_fits(text: str, tmp_path: Path) -> None:
    """What is converted is a fleet file that `check` reads and finds no fault in."""
    for one in _launches(text):
        report = _checked(one.fleet, tmp_path)
        assert {pair.verdict for pair in report.pairs} == {"fits"}, report.findings


def test_a_fault_of_the_recipe_is_found(tmp_path: Path) -> None:
    """Pages of 64 tokens beside pages of 32."""
    text = SGLANG.replace("tp-size: 2\n      page-size: 64", "tp-size: 2\n      page-size: 32")
    (one,) = _launches(text)
    report = _checked(one.fleet, tmp_path)
    assert "PD1001" in {finding.code for finding in report.findings}
    assert {pair.verdict for pair in report.pairs} == {"refused"}


@pytest.mark.code("PD3102")
@pytest.mark.parametrize(
    ("right", "wrong", "code"),
    [
        ("disaggregation-mode: decode", "disaggregation-mode: prefill", "PD3102"),
        ("decode:\n      served-model-name: qwen", "decode:\n      served-model-name: other", "PD1039"),
        ("nixl\n      disaggregation-bootstrap-port: 30001\n      tp", "mori\n      tp", "PD3102"),
    ],
)
def test_roles_names_and_transfers_that_disagree_are_kept_for_check_to_refuse(
    right: str, wrong: str, code: str, tmp_path: Path
) -> None:
    """A conversion settles nothing between two roles."""
    assert right in SGLANG
    (one,) = _launches(SGLANG.replace(right, wrong))
    report = _checked(one.fleet, tmp_path)
    assert code in {finding.code for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{backend: {}, model: {}, resources: {}}", "backend"),
        ("{backend: {sglang_config: {prefill: {}}}}", "backend.sglang_config.decode"),
        ("{base: {}, other: 1}", "other"),
        ("{base: {}, override_a: 1}", "override_a"),
        ("{base: {}, zip_override_a: {b: [1, 2], c: [1, 2, 3]}}", "zip_override_a"),
    ],
)
def test_what_is_no_recipe_is_refused_with_its_place(text: str, where: str) -> None:
    """Rather than a fleet of half of it."""
    with pytest.raises(InputError) as refused:
        _launches(text)
    assert refused.value.where == where


def test_the_tool_prints_a_table_and_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row a model and engine; a file that is no recipe fails the run and is named."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "models" / "qwen3_32b").mkdir(parents=True)
    (tmp_path / "models" / "qwen3_32b" / "config.json").write_text(json.dumps(CONFIG))
    for name, text in {"a": SGLANG, "b": VLLM, "c": SEVERAL, "d": "[]"}.items():
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(sys, "argv", [str(TOOL), str(tmp_path / "recipes"), "--models", str(tmp_path / "models")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(TOOL), run_name="__main__")
    out = capsys.readouterr().out
    assert ended.value.code == 3
    assert "| qwen3_32b | sglang | 2 | 4 | 4 | 0 | 0 | 0 | 0 |" in out
    assert "| qwen3_32b | vllm | 1 | 1 | 1 | 0 | 0 | 0 | 0 |" in out
    assert "d.yaml: holds no mapping" in out
    assert "model.precision: the fleet file has no field for it" in out
    _, _, left = out.partition("lines left out: ")
    total, *lines = left.strip().splitlines()
    assert int(total) == sum(int(line.split()[0]) for line in lines) > 0
