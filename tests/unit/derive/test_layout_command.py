"""`pdctl layout` as its users meet it: three forms, exact JSON, errors that say what to write."""

import json
import shutil
from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl.cli.layout_table import lines
from pdctl_transfer.layout.read import decode_manifest
from tests.unit.derive.models import LLAMA, ORACLE


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    status = main([str(word) for word in ("layout", *argv)])
    out, err = capsys.readouterr()
    return status, out, err


def test_json_is_the_contract_alone_on_standard_output(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(
        capsys, "--engine", "sglang", "--role", "prefill", "--model", model, "--tp", 2, "--page-size", 64, "-o", "json"
    )
    manifest = decode_manifest(out.encode(), "out")
    assert status == 0
    assert next(iter(json.loads(out))) == "schema"
    assert (manifest.model.name, manifest.parallel.attn_tp, manifest.page_size) == ("llama", 2, 64)
    assert "hopper is assumed" in err


def test_flags_after_the_dashes_are_the_engines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, "--engine", "sglang", "--role", "decode", "--model", model, "-o", "json",
        "--", "--tp=8", "--enable-dp-attention", "--dp-size", 4, "--kv-cache-dt", "fp8_e4m3",
    )  # fmt: skip
    manifest = decode_manifest(out.encode(), "out")
    assert (status, manifest.parallel.attn_tp, manifest.kv_cache_dtype) == (0, 2, "fp8_e4m3")


def test_manifest_is_printed_as_a_table_and_comes_back_unchanged(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, derived, _ = run(capsys, "--engine", "vllm", "--role", "prefill", "--model", model, "-o", "json")
    path = tmp_path / "side.json"
    path.write_text(derived)
    status, table, _ = run(capsys, path)
    assert status == 0
    assert "stage 0  layers 0 to 3" in table
    assert run(capsys, path, "-o", "json")[1] == derived


def test_fleet_file_gives_the_side_asked_for(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: {model}}}\nengine: sglang\n"
        "prefill: {attn_tp: 4, page_size: 32}\ndecode: {attn_tp: 2, page_size: 32}\n"
    )
    status, out, _ = run(capsys, fleet, "--role", "decode", "-o", "json")
    assert (status, decode_manifest(out.encode(), "out").parallel.attn_tp) == (0, 2)
    status, out, _ = run(capsys, fleet, "--role", "prefill")
    assert f"{fleet}:5" in out
    status, _, err = run(capsys, fleet)
    assert status == 2
    assert "--role prefill or --role decode" in err
    status, _, err = run(capsys, fleet, "--role", "decode", "--pool", "big")
    assert (status, "the decode pools are decode" in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to lay out"),
        (["--engine", "sglang"], "--role"),
        (["--engine", "sglang", "--role", "prefill"], "--model"),
        (["--engine", "sglang", "--role", "prefill", "--model", "/nope"], "/nope/config.json"),
        (["--engine", "sglang", "--role", "prefill", "--model", "builtin:nope"], "builtin:tiny-llama"),
        (["--engine", "nope", "--role", "prefill", "--model", "M"], "reference, sglang, vllm"),
        (["--engine", "sglang", "--role", "prefill", "--model", "M", "--speculative", "{"], "--speculative"),
        (["--engine", "sglang", "--role", "prefill", "--model", "M", "--speculative", "3"], "--speculative"),
        (["--engine", "sglang", "--role", "prefill", "--model", "M", "x.json"], "what is x.json for?"),
        (["--engine", "sglang", "--role", "prefill", "--model", "M", "--tp", "0"], "--tp  found 0"),
        (["--engine", "sglang", "--role", "prefill", "--model", "M", "--pp", "0"], "--pp  found 0"),
        (["/nope.json"], "/nope.json"),
        (["/dev/null"], "/dev/null"),
        (["MANIFEST", "--tp", "4"], "--tp"),
        (["MANIFEST", "--", "--tp", "4"], "engine flags"),
    ],
)
def test_mistakes_are_told(
    argv: list[str], says: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"schema": "pdctl.layout/v1"}')
    status, out, err = run(
        capsys, *(str(model) if word == "M" else str(path) if word == "MANIFEST" else word for word in argv)
    )
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.code("PD1021")
@pytest.mark.parametrize(
    "change", [("page_size", 0), ("attn_tp", 0), ("heads", 0), ("groups", []), ("inner_bytes", -1), ("item_len", 1)]
)
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_manifest_that_contradicts_itself_is_refused(
    change: tuple[str, object], form: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a traceback over a zero nor a table that looks sound."""
    _, derived, _ = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model, "-o", "json")
    key, value = change
    document = json.loads(derived)
    entry = document["stages"][0]["components"][0]["entries"][0]
    (place,) = [place for place in (document, document["parallel"], entry, entry["groups"][0]) if key in place]
    place[key] = value
    path = tmp_path / "side.json"
    path.write_text(json.dumps(document))
    status, out, err = run(capsys, path, "-o", form)
    assert status == 3
    assert [one["code"] for one in json.loads(out)["findings"]] == ["PD1021"] if form == "json" else out == ""
    assert f"PD1021  {path} $." in err


def test_layer_ids_far_apart_are_listed(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two ids at the ends of their range are two ids, not four thousand million."""
    _, derived, _ = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model, "-o", "json")
    document = json.loads(derived)
    document["stages"][0]["components"][0]["entries"][1]["layer"] = 2**32 - 3
    path = tmp_path / "side.json"
    path.write_text(json.dumps(document))
    status, out, _ = run(capsys, path)
    assert (status, "0, 4294967293, 2, 3" in out) == (0, True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'{"a": NaN', b"\xff\xfe", b"[" * 100_000])
def test_configs_that_are_not_json_objects(content: bytes, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "config.json").write_bytes(content)
    status, _, err = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model)
    assert status == 2
    assert f"PD0022 {model / 'config.json'}" in err


def test_quantisation_in_a_file_of_its_own_is_read(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}')
    _, out, _ = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model, "-o", "json")
    assert decode_manifest(out.encode(), "out").kv_cache_dtype == "fp8_e4m3"


def test_draft_model_in_a_folder_is_read(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 1}))
    settings = json.dumps({"algorithm": "EAGLE3", "draft_model_path": str(draft)})
    argv = ("--engine", "sglang", "--role", "prefill", "--model", model, "--speculative", settings, "-o", "json")
    manifest = decode_manifest(run(capsys, *argv)[1].encode(), "out")
    assert [entry.layer for entry in manifest.stages[0].components[0].entries][-2:] == [4, 4]


def test_algorithm_alone_is_settings_enough(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model / "config.json").write_text(json.dumps({**LLAMA, "num_nextn_predict_layers": 1}))
    argv = ("--engine", "sglang", "--role", "prefill", "--model", model, "-o", "json", "--speculative")
    manifest = decode_manifest(run(capsys, *argv, "EAGLE")[1].encode(), "out")
    assert manifest.speculative == {"algorithm": "EAGLE"}
    assert decode_manifest(run(capsys, *argv, "null")[1].encode(), "out").speculative is None


def test_refusal_of_the_engine_is_coded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "falcon"
    folder.mkdir()
    shutil.copy(ORACLE / "falcon_h1_34b.json", folder / "config.json")
    status, _, err = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", folder, "--tp", 4)
    assert (status, "PD1004" in err) == (2, True)


def test_narrow_terminals_lose_columns_not_lines(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model, "-o", "json")
    manifest = decode_manifest(out.encode(), "out")
    shown = {width: lines(manifest, {}, width) for width in (60, 90, 140)}
    assert len({len(one) for one in shown.values()}) == 1
    assert max(map(len, shown[60])) <= 80
    assert any("[1][2][128]" in line for line in shown[140])


@pytest.mark.code("PD0001", "PD0030")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--backend", "mooncak"], "did you mean mooncake?"),
        (["--backend", "foo"], 'no backend "foo"'),
        (["--", "--page-sise", "4"], "did you mean --page-size?"),
        (["--", "--help"], "--help: it prints and ends"),
    ],
)
def test_what_is_not_known_lays_nothing_out(
    words: list[str], says: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model, *words)
    assert (status, out) == (2, "")
    assert says in err


def test_flags_of_another_version_are_noted(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "sglang", "--role", "prefill", "--model", model, "--", "--cuda-graph-max-bs", "16"]
    status, _, err = run(capsys, *words)
    assert status == 0
    assert "SGLang 0.5.2 to 0.5.19 had it" in err


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["FooForCausalLM"], "SGLang 0.5.23 has no class for FooForCausalLM"),
        (None, "the config names no architecture"),
        (["LlamaForCausalLM"], None),
    ],
)
def test_an_architecture_that_the_engine_has_no_class_for_is_an_assumption(
    names: list[str] | None, says: str | None, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": names}))
    status, _, err = run(capsys, "--engine", "sglang", "--role", "prefill", "--model", model)
    assert status == 0
    assert (says in err) if says else ("class" not in err and "architecture" not in err)
