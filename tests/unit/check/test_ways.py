"""Which way each pair goes, by the engine's own transfer or by the core: said with a code, judged by its own rules."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from pdctl.check.by_core import starts_with_core
from pdctl.check.run import Options, check_fleet
from pdctl.check.ways import Choice, choose
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.up.plan import make_plan

CONFIGS = Path(__file__).parents[2] / "data/oracle/configs"


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fleet(
    tmp_path: Path, model: str, engine: str, transfer: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any]
) -> LoadedFleet:
    folder = tmp_path / model
    folder.mkdir(exist_ok=True)
    config = {"max_position_embeddings": 131072} | json.loads((CONFIGS / f"{model}.json").read_text())
    (folder / "config.json").write_text(json.dumps(config))
    document = {
        "schema": "pdctl.fleet/v1",
        "name": "f",
        "model": {"path": str(folder)},
        "engine": engine,
        "transfer": {"backend": "mooncake", "protocol": "rdma", **transfer},
        "prefill": prefill,
        "decode": decode,
    }
    return parse_fleet(yaml.safe_dump(document).encode(), tmp_path / "f.yaml")


def findings(loaded: LoadedFleet) -> dict[str, tuple[str, str]]:
    """Severity and words of each finding about the pairs, by its code."""
    report = check_fleet(loaded, Options())
    return {one.code: (one.severity, one.message) for one in report.findings if not one.code.startswith("PD20")}


MAMBA2 = "nemotron3_nano_30b"
"""Its convolution is a concatenation that SGLang cuts flat."""


@pytest.mark.code("PD1057")
def test_what_sglang_cuts_flat_falls_away_where_the_core_carries(tmp_path: Path) -> None:
    own = findings(fleet(tmp_path, MAMBA2, "sglang", {}, {"attn_tp": 1}, {"attn_tp": 2}))
    assert own["PD1016"][0] == "error"
    for core in ("pdctl", "auto"):
        by_core = findings(fleet(tmp_path, MAMBA2, "sglang", {"core": core}, {"attn_tp": 1}, {"attn_tp": 2}))
        assert "PD1016" not in by_core
        severity, words = by_core["PD1057"]
        assert severity == "info"
        assert "PD1016" in words  # what the engine's own transfer could not


def test_equal_sizes_stay_with_the_engine_under_auto(tmp_path: Path) -> None:
    by = findings(fleet(tmp_path, "llama31_70b", "sglang", {"core": "auto"}, {"attn_tp": 2}, {"attn_tp": 2}))
    assert by.keys() == {"PD1058"}
    by = findings(fleet(tmp_path, "llama31_70b", "sglang", {"core": "auto"}, {"attn_tp": 2}, {"attn_tp": 4}))
    assert by.keys() == {"PD1057"}


@pytest.mark.code("PD1058")
@pytest.mark.code("PD1059")
@pytest.mark.parametrize(
    ("prefill", "decode", "code", "severity"),
    [
        ("engine", "engine", None, None),
        ("engine", "pdctl", "PD1059", "warning"),
        ("pdctl", "engine", "PD1059", "warning"),
        ("engine", "auto", "PD1058", "info"),
        ("auto", "pdctl", "PD1057", "info"),
        ("pdctl", "auto", "PD1057", "info"),
    ],
)
def test_both_sides_must_have_the_core(
    tmp_path: Path, prefill: str, decode: str, code: str | None, severity: str | None
) -> None:
    """One side's own word for `engine` keeps the pair with the engine, judged by the engine's rules."""
    sides = [{"attn_tp": tp, "transfer": {"core": word}} for tp, word in zip((1, 2), (prefill, decode), strict=True)]
    found = findings(fleet(tmp_path, MAMBA2, "sglang", {}, *sides))
    assert ("PD1016" in found) is (code != "PD1057")
    said = found.keys() & {"PD1057", "PD1058", "PD1059"}
    assert said == ({code} if code else set())
    if code:
        assert found[code][0] == severity


def test_a_plugin_that_is_off_is_no_core(tmp_path: Path) -> None:
    off = {"attn_tp": 2, "env": {"PDCTL_PLUGIN": "off"}}
    found = findings(fleet(tmp_path, MAMBA2, "sglang", {"core": "pdctl"}, {"attn_tp": 1}, off))
    assert "PDCTL_PLUGIN" in found["PD1059"][1]
    assert found["PD1016"][0] == "error"


@pytest.mark.parametrize(
    ("transfer", "prefill", "decode", "word"),
    [
        ({}, {"attn_tp": 2, "cp": 2}, {"attn_tp": 2}, "context parallelism 2 → 1"),
        ({"backend": "mori"}, {"attn_tp": 2}, {"attn_tp": 2}, "rides on mooncake"),
        ({}, {"attn_tp": 2, "engine_version": "0.5.16"}, {"attn_tp": 2, "engine_version": "0.5.16"}, "0.5.16"),
    ],
)
def test_what_the_core_does_not_carry_goes_by_the_engine(
    tmp_path: Path, transfer: dict[str, Any], prefill: dict[str, Any], decode: dict[str, Any], word: str
) -> None:
    found = findings(fleet(tmp_path, "deepseek_v3", "sglang", {"core": "pdctl", **transfer}, prefill, decode))
    assert "PD1061" not in found  # no fault of the pair: it has another way
    severity, words = found["PD1059"]
    assert (severity, "PD1061" in words, word in words) == ("warning", True, True)


@pytest.mark.parametrize(
    "more", [{"args": ["--enable-kv-cache-sharding"]}, {"env": {"SGLANG_DISAGG_STAGING_BUFFER": "1"}}]
)
def test_settings_with_which_the_plugin_leaves_the_engine_its_own(tmp_path: Path, more: dict[str, Any]) -> None:
    sides = {"attn_tp": 2, **more}, {"attn_tp": 2}
    found = findings(fleet(tmp_path, "llama31_70b", "sglang", {"core": "pdctl"}, *sides))
    assert next(iter(more["args"] if "args" in more else more["env"])) in found["PD1059"][1]


@pytest.mark.code("PD1061")
def test_a_connector_of_ours_that_cannot_carry_the_pair_is_an_error(tmp_path: Path) -> None:
    """vLLM told to run it by name has no other way."""
    options = {"kv_connector": "PdctlConnector", "kv_connector_module_path": "pdctl_transfer.plugins.vllm_core"}
    dcp = {"attn_tp": 4, "args": ["--decode-context-parallel-size", "4"]}
    loaded = fleet(tmp_path, "deepseek_v3", "vllm", {"options": options}, {"attn_tp": 4}, dcp)
    assert findings(loaded)["PD1061"][0] == "error"


def test_vllm_takes_our_connector_for_what_nixls_refuses(tmp_path: Path) -> None:
    """16 ranks hold each of 8 heads twice: NIXL's connector refuses to bring those to 8 ranks."""
    for core, refused in (("engine", True), ("pdctl", False), ("auto", False)):
        sides = {"attn_tp": 16}, {"attn_tp": 8}
        loaded = fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": core}, *sides)
        found = findings(loaded)
        assert ("PD1005" in found) is refused
        assert ("PD1057" in found) is not refused
        assert starts_with_core(loaded) is not refused


def test_vllm_keeps_nixls_connector_where_it_does_as_well(tmp_path: Path) -> None:
    loaded = fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": "auto"}, {"attn_tp": 4}, {"attn_tp": 8})
    assert findings(loaded).keys() == {"PD1058"}
    assert not starts_with_core(loaded)


def test_stages_of_vllm_go_by_its_own_connector(tmp_path: Path) -> None:
    """Ours knows none; NIXL's has rules of its own for them, which then are asked."""
    sides = {"attn_tp": 2, "pp": 2}, {"attn_tp": 2}
    loaded = fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": "pdctl"}, *sides)
    found = findings(loaded)
    assert "pipeline parallelism" in found["PD1059"][1]
    assert "NIXL" in found["PD1006"][1]
    assert not starts_with_core(loaded)


def test_vllm_has_one_connector_on_every_side(tmp_path: Path) -> None:
    """One pool that keeps the engine's own keeps it for all: the router pairs any of them."""
    pools = [{"name": "a", "attn_tp": 4}, {"name": "b", "attn_tp": 4, "transfer": {"core": "engine"}}]
    loaded = fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": "pdctl"}, pools, {"attn_tp": 4})  # type: ignore[arg-type]
    assert findings(loaded)["PD1059"][0] == "warning"
    assert not starts_with_core(loaded)
    assert {one.instance.by_core for one in make_plan(loaded).engines} == {False}


def test_blocks_of_unequal_size_are_refused_by_our_connector_too(tmp_path: Path) -> None:
    """By its own code: a page is a page on both sides. That vLLM reads a multiple wrongly is NIXL's matter."""
    sides = {"page_size": 16}, {"page_size": 32}
    own = findings(fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl"}, *sides))
    ours = findings(fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": "pdctl"}, *sides))
    assert own.keys() & {"PD1001", "PD1020"} == {"PD1020"}
    assert ours.keys() & {"PD1001", "PD1020"} == {"PD1001"}


def test_what_auto_decides_is_what_is_started(tmp_path: Path) -> None:
    """The plan asks the same judge as the report."""
    loaded = fleet(
        tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": "auto"}, {"attn_tp": 16}, {"attn_tp": 8}
    )
    argv = [one.unit.argv for one in make_plan(loaded).engines]
    configs = [json.loads(words[words.index("--kv-transfer-config") + 1]) for words in argv]
    assert {one["kv_connector"] for one in configs} == {"PdctlConnector"}


def test_a_model_that_is_not_here_is_started_as_the_file_says(tmp_path: Path) -> None:
    for core, by_core in (("auto", False), ("pdctl", True)):
        loaded = fleet(tmp_path, "llama31_70b", "vllm", {"backend": "nixl", "core": core}, {}, {})
        (tmp_path / "llama31_70b/config.json").unlink()
        assert starts_with_core(loaded) is by_core


@pytest.mark.parametrize(
    ("words", "decides", "of_engine", "of_core", "slow", "expected"),
    [
        (("pdctl", "pdctl"), "pdctl", None, None, None, (True, "PD1057")),
        (("auto", "auto"), "auto", None, None, None, (False, "PD1058")),
        (("auto", "auto"), "auto", "PD1016", None, None, (True, "PD1057")),
        (("auto", "auto"), "auto", None, None, "slow", (True, "PD1057")),
        (("auto", "auto"), "auto", "PD1016", "PD1061", "slow", (False, "PD1058")),
        (("pdctl", "pdctl"), "pdctl", None, "PD1061", None, (False, "PD1059")),
        (("pdctl", "auto"), "auto", None, None, None, (False, "PD1058")),
    ],
)
def test_the_choice_itself(
    words: Any, decides: Any, of_engine: str | None, of_core: str | None, slow: str | None, expected: tuple[bool, str]
) -> None:
    made = choose(words, decides, of_engine, of_core, slow)
    assert isinstance(made, Choice)
    assert (made.by_core, made.code) == expected
    assert made.reason
