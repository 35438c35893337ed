"""Engine flags as people write them."""

from typing import Any

import pytest

from pdctl.derive import Request
from pdctl.derive.flags import apply, apply_environment, parse, refuse_other_role, refuse_words
from pdctl.errors import InputError
from tests.unit.derive.models import LLAMA


def given(engine: str, text: str, role: str = "prefill", **fields: Any) -> Request:
    request = Request(engine=engine, role=role, config=LLAMA, **fields)  # type: ignore[arg-type]
    return apply(request, text.split(), fields.get("where", ()))


@pytest.mark.parametrize(
    "text",
    [
        "--tp 4",
        "--tp-size 4",
        "--tensor-parallel-size=4",
        "--tensor-par 4",
        "--tp=2 --tensor-parallel-size=4",
        "--tp 2 --tp 4",
    ],
)
def test_spellings_of_one_flag(text: str) -> None:
    """Aliases, `=`, an abbreviation as argparse takes it; the last of several wins."""
    assert given("sglang", text).tp == 4


@pytest.mark.parametrize("text", ["--tensor-parallel-size 4", "-tp 4", "--tensor_parallel_size=4", "--tensor-par 4"])
def test_spellings_of_vllm(text: str) -> None:
    assert given("vllm", text).tp == 4


def test_flags_that_shape_nothing_are_passed_over() -> None:
    request = given(
        "sglang", "--host 0.0.0.0 --mem-fraction-static 0.8 --trust-remote-code --page-size 64 --log-level info"
    )
    assert (request.page_size, request.flags) == (64, {})
    assert parse("reference", ["--tp", "2"])["tp"].value == "2"


def test_data_parallelism_splits_attention_only_where_it_is_asked_to() -> None:
    """--dp-size counts replicas; with --enable-dp-attention it splits the TP ranks."""
    assert given("sglang", "--tp 8 --dp 2").attn_tp == 8
    assert given("sglang", "--tp 8 --enable-dp-attention --dp 2").attn_tp == 4
    assert given("sglang", "--tp 8 --attn-dp-size 4").attn_tp == 2
    assert given("vllm", "-tp 4 --data-parallel-size 2").attn_tp == 4


def test_what_another_version_calls_it_is_read_as_what_it_is() -> None:
    assert given("sglang", "--pp 2 --nsa-decode-backend trtllm").pp == 2
    assert given("sglang", "--nsa-decode-backend trtllm").flags == {"dsa-decode-backend": "trtllm"}


def test_a_switch_that_is_turned_off_is_not_on() -> None:
    assert given("vllm", "--disable-hybrid-kv-cache-manager").flags == {"disable-hybrid": ""}
    assert given("vllm", "--no-disable-hybrid-kv-cache-manager").flags == {}


@pytest.mark.code("PD0030")
@pytest.mark.parametrize(
    ("engine", "words", "says"),
    [
        ("sglang", "--page-sise 4", "--page-sise: no such flag in SGLang 0.5.23"),
        ("sglang", "--tp_size 4", "--tp_size: no such flag"),
        ("sglang", "--speculative-num 3", "could be --speculative-num-draft-tokens or --speculative-num-steps"),
        ("vllm", "--tensor-paralel-size 4", "--tensor-paralel-size: no such flag in vLLM 0.32.0"),
        ("reference", "--page-siz 4", "--page-siz: no such flag"),
    ],
)
def test_slips_of_the_pen_are_refused_whatever_the_version(engine: str, words: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        refuse_words(engine, words.split())
    assert caught.value.code == "PD0030"


def test_a_flag_that_may_be_another_versions_is_a_note() -> None:
    [note] = refuse_words("sglang", ["--enable-something-of-next-year", "--page-size", "4"])
    assert note == (
        "--enable-something-of-next-year: no such flag in SGLang 0.5.23: which version of sglang will run is not known"
    )
    [note] = refuse_words("sglang", ["--cuda-graph-bs", "8"])
    assert note.endswith("SGLang 0.5.2 to 0.5.19 had it; which version will run is not known")


def test_speculative_settings_are_collected() -> None:
    request = given("sglang", "--speculative-algo NEXTN --speculative-num-steps 3 --speculative-eagle-topk=1")
    assert request.speculative == {"algorithm": "NEXTN", "num_steps": 3, "eagle_topk": 1}
    request = apply(
        Request(engine="vllm", role="decode", config=LLAMA),
        ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}', "--speculative-config.model", "d"],
    )
    assert request.speculative == {"method": "mtp", "num_speculative_tokens": 2, "model": "d"}


def test_connector_names_the_backend_and_the_role() -> None:
    connector = ["--kv_transfer_config", '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}']
    request = apply(Request(engine="vllm", role="prefill", config=LLAMA), connector)
    assert request.backend == "nixl"
    assert "NixlConnector" in request.origins["backend"]
    assert (request.flags["connector"], request.flags["kv_role"]) == ("NixlConnector", "prefill")
    with pytest.raises(InputError, match="found prefill, but the side asked for is decode"):
        refuse_other_role(apply(Request(engine="vllm", role="decode", config=LLAMA), connector))


def test_role_flag_of_the_other_side_is_refused() -> None:
    assert given("sglang", "--disaggregation-mode prefill").role == "prefill"
    with pytest.raises(InputError, match="found decode, but the side asked for is prefill"):
        refuse_other_role(given("sglang", "--disaggregation-mode decode"))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("--tp ${TP}", "--tp"),
        ("--tensor-p x", "--tensor-p"),
        ("--page-size -1", "--page-size"),
        ("--page-size", "--page-size"),
        ("--json-model-override-args {", "--json-model-override-args"),
        ("--json-model-override-args []", "--json-model-override-args"),
    ],
)
def test_values_that_cannot_be_read_name_the_flag(text: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        given("sglang", text)
    assert caught.value.where == where


def test_overrides_change_the_config() -> None:
    request = apply(
        Request(engine="sglang", role="prefill", config={**LLAMA, "text_config": {"a": 1, "b": 2}}),
        ["--json-model-override-args", '{"num_hidden_layers": 2, "text_config": {"b": 3}}'],
    )
    assert request.config["num_hidden_layers"] == 2
    assert request.config["text_config"] == {"a": 1, "b": 3}


def test_origins_name_the_flag_as_it_was_spelled() -> None:
    words, places = ["--page-si", "4", "--tp=2"], ["fleet.yaml:9", "fleet.yaml:9", "fleet.yaml:10"]
    request = apply(Request(engine="sglang", role="prefill", config=LLAMA), words, places)
    assert request.origins == {"page_size": "fleet.yaml:9 --page-si", "tp": "fleet.yaml:10 --tp"}


def test_environment_comes_before_flags() -> None:
    request = Request(engine="sglang", role="prefill", config=LLAMA)
    variables = {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16", "PATH": "/"}
    request = apply_environment(request, variables, {"SGLANG_MAMBA_SSM_DTYPE": "fleet.yaml:20"})
    assert request.flags == {"mamba-ssm-dtype": "bfloat16"}
    assert request.origins["mamba-ssm-dtype"] == "fleet.yaml:20 SGLANG_MAMBA_SSM_DTYPE"
    assert apply(request, ["--mamba-ssm-dtype", "float32"]).flags == {"mamba-ssm-dtype": "float32"}
