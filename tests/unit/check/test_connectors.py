"""Connectors that wrap others: the child that moves the state is judged with its role, what rides along is named."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.derive import Request, derive
from pdctl.derive.connectors import KNOWN, mover, read
from pdctl.derive.flags import apply
from tests.unit.derive.models import QWEN3 as CONFIG

SLIDING = {
    **CONFIG,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
}
NIXL = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
OFFLOAD = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


def multi(*children: dict[str, Any], name: str = "MultiConnector", role: str = "kv_both") -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": {"connectors": list(children)}}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The exit status and the report of two pools of vLLM with these connectors in their args (None: none)."""
    monkeypatch.chdir(tmp_path)

    def run(
        prefill: dict[str, Any] | None, decode: dict[str, Any] | None, *, tp: tuple[int, int] = (1, 1),
        options: dict[str, Any] | None = None, config: dict[str, Any] = CONFIG, backend: str = "nixl",
    ) -> tuple[int, dict[str, Any]]:  # fmt: skip
        (tmp_path / "model").mkdir(exist_ok=True)
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
        pools = {}
        for role, spoken, size in (("prefill", prefill, tp[0]), ("decode", decode, tp[1])):
            args = ["--kv-transfer-config", json.dumps(spoken)] if spoken else []
            pools[role] = {"attn_tp": size, "args": args}
        fleet = {
            "schema": "pdctl.fleet/v1", "name": "f", "model": {"path": "model"}, "engine": "vllm",
            "transfer": {"backend": backend, "options": options or {}}, **pools,
        }  # fmt: skip
        (tmp_path / "fleet.yaml").write_text(json.dumps(fleet, indent=1))
        status = main(["check", "fleet.yaml", "-o", "json"])
        out = capsys.readouterr()
        assert out.out, out.err
        return status, json.loads(out.out)

    return run


def codes(report: dict[str, Any]) -> set[str]:
    return {finding["code"] for finding in report["findings"] if finding["severity"] != "info"}


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (multi(NIXL, OFFLOAD), NIXL),
        (multi(OFFLOAD, NIXL), multi(NIXL, {"kv_connector": "MooncakeStoreConnector"})),
        (multi(OFFLOAD, NIXL, name="PdConnector"), NIXL),
        (multi(multi(OFFLOAD, NIXL), OFFLOAD), NIXL),
    ],
)
def test_the_child_that_moves_the_state_is_judged(judged: Any, prefill: Any, decode: Any) -> None:
    """NIXL in each of them: HND pages, so unequal TP is what NIXL makes of it; what rides along is named."""
    status, report = judged(prefill, decode, tp=(2, 1))
    assert (status, codes(report)) == (0, set())
    assert report["pairs"][0]["saw"] == "kv: TP 2 → 1 on nixl"
    assert any("carried, not judged" in note for note in report["notes"])


@pytest.mark.code("PD3102")
def test_what_moves_the_state_is_what_the_fleet_names(judged: Any) -> None:
    """Wrapped or not, two libraries are two truths."""
    mooncake = multi({"kv_connector": "MooncakeConnector", "kv_role": "kv_both"}, OFFLOAD)
    assert "PD3102" in codes(judged(mooncake, NIXL)[1])
    assert judged(mooncake, mooncake, backend="mooncake")[0] == 0


def test_one_child_that_does_not_know_hybrid_caches_turns_them_off() -> None:
    """Its sliding layers then lie with the others; with children that all know them they lie apart."""
    kinds = {}
    for name, child in (("off", {"kv_connector": "DynamoConnector"}), ("on", OFFLOAD)):
        words = ["--kv-transfer-config", json.dumps(multi(NIXL, child))]
        request = apply(Request(engine="vllm", role="decode", config=SLIDING), words)
        kinds[name] = {part.kind for part in derive(request).manifest.stages[0].components}
    assert kinds == {"off": {"kv"}, "on": {"kv", "swa"}}


@pytest.mark.code("PD1036")
def test_hybrid_caches_off_on_one_side_alone_are_refused(judged: Any) -> None:
    """NIXL's handshake compares it; off on both sides is fine."""
    wrapped = multi({"kv_connector": "DynamoConnector"}, NIXL, name="PdConnector")
    assert judged(wrapped, wrapped, config=SLIDING)[0] == 0
    status, report = judged(wrapped, NIXL, config=SLIDING)
    assert status == 3
    assert "PD1036" in codes(report)


@pytest.mark.code("PD1033")
def test_the_role_is_that_of_the_child_that_moves(judged: Any) -> None:
    """kv_both around a producer and a consumer is a pair; around two producers it is none."""
    producer, consumer = ({**NIXL, "kv_role": role} for role in ("kv_producer", "kv_consumer"))
    assert judged(multi(producer, OFFLOAD), multi(consumer, OFFLOAD))[0] == 0
    status, report = judged(multi(producer, OFFLOAD), multi(producer, OFFLOAD))
    assert (status, codes(report)) == (3, {"PD1033"})


@pytest.mark.code("PD1042")
@pytest.mark.parametrize("sides", [(NIXL, None), (None, NIXL), (multi(NIXL, OFFLOAD), None)])
def test_a_connector_on_one_side_only(judged: Any, sides: Any) -> None:
    """On neither side it is pdctl's to give; in the options it is both sides'."""
    status, report = judged(*sides)
    assert (status, codes(report)) == (3, {"PD1042"})
    assert judged(None, None)[0] == 0
    assert judged(None, None, options=NIXL)[0] == 0


@pytest.mark.code("PD1050")
@pytest.mark.parametrize("sides", [(OFFLOAD, OFFLOAD), (multi(OFFLOAD), NIXL), (NIXL, multi(OFFLOAD, OFFLOAD))])
def test_connectors_that_only_keep_state(judged: Any, sides: Any) -> None:
    """Each engine offloads for itself: nothing comes from prefill to decode."""
    status, report = judged(*sides)
    assert (status, codes(report)) == (3, {"PD1050"})
    finding = next(finding for finding in report["findings"] if finding["code"] == "PD1050")
    assert finding["evidence"][0]["source"].startswith("fleet.yaml:")


@pytest.mark.code("PD1050")
def test_a_store_that_engines_share_is_a_warning(judged: Any) -> None:
    """State may come over; when, and what of it, is not judged."""
    store = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    status, report = judged(None, None, options=store)
    assert (status, codes(report)) == (0, {"PD1050"})
    assert judged(None, None, options=multi(NIXL, store))[0] == 0


def test_the_options_name_the_connector(judged: Any) -> None:
    """What is named there is what runs; an unknown one is judged as the fleet's backend, and said so."""
    _, report = judged(None, None, options={"kv_connector": "LMCacheConnectorV1"})
    assert report["pairs"][0]["saw"].endswith("on lmcache")
    status, report = judged(None, None, options={"kv_connector": "OwnConnector", "kv_connector_module_path": "own"})
    assert (status, codes(report)) == (0, set())
    assert any("OwnConnector" in note for note in report["notes"])


def test_which_connectors_know_hybrid_caches_is_what_the_release_says() -> None:
    """By the classes that say so in the pinned release, for each connector that it registers."""
    facts = json.loads((files("pdctl.versions") / "releases.json").read_bytes())["vllm"]["facts"]
    registered, hybrid = facts["connectors"]["0.30.0"], {*facts["hybrid"]["0.30.0"], "NixlConnector"}
    hybrid |= {"NixlPullConnector", "NixlPushConnector"}
    assert {name for name in registered if name not in KNOWN} == set()
    assert {name for name in registered if KNOWN[name].hybrid} == hybrid & set(registered)


def test_hostile_trees_end() -> None:
    """Deep, circular in shape, of other types: read as far as it makes sense."""
    deep: dict[str, Any] = NIXL
    for _ in range(50):
        deep = multi(deep)
    tree = read(deep)
    assert tree is not None
    assert mover(tree) is None
    strange = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [1, None, {}, "x"]}}
    assert (read(strange) or tree).children == ()
    assert read({"kv_connector": 3}) is None
    assert read({}) is None
