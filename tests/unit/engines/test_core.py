"""`transfer.core` in a fleet file → what SGLang and vLLM are started with, and what is refused of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from pdctl.engines import adapter
from pdctl.engines import core as told
from pdctl.engines.base import Command, Instance
from pdctl.engines.refusals import refuse
from pdctl.errors import FleetFileError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.fleet.model import Core
from pdctl.up.plan import make_plan
from pdctl_transfer.plugins import core as plugin
from pdctl_transfer.session.options import Options


def fleet(engine: str, transfer: dict[str, Any], prefill: Any = None, decode: Any = None, **more: Any) -> LoadedFleet:
    document = {
        "schema": "pdctl.fleet/v1",
        "name": "f",
        "model": {"path": "models/M"},
        "engine": engine,
        "transfer": {"backend": "mooncake", "protocol": "tcp", **transfer},
        "prefill": prefill or {},
        "decode": decode or {},
        **more,
    }
    return parse_fleet(yaml.safe_dump(document).encode(), Path("f.yaml"))


def commands(loaded: LoadedFleet, by_core: bool | None = None) -> dict[str, Command]:
    made = {}
    for pool in loaded.pools():
        engine = adapter(pool.engine or loaded.fleet.engine)
        ports = {purpose: 9000 + place for place, purpose in enumerate(engine.purposes(pool))}
        one = Instance(pool.members[0], pool, loaded.fleet, loaded.model_path, "10.0.0.7", ports)
        made[pool.name] = engine.command(replace(one, by_core=by_core))
    return made


def config(made: Command) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(made.argv[made.argv.index("--kv-transfer-config") + 1])
    return given


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for engine in ("SGLANG", "VLLM"):
        monkeypatch.delenv(f"PDCTL_{engine}_PYTHON", raising=False)


def test_a_pools_own_word_wins_over_the_fleets() -> None:
    loaded = fleet("sglang", {"core": "auto"}, decode={"transfer": {"core": "pdctl"}}, roles={"aggregate": {}})
    assert [pool.core for pool in loaded.pools()] == ["auto", "pdctl", "engine"]
    assert {pool.core for pool in fleet("sglang", {}).pools()} == {"engine"}


def test_the_words_are_those_that_the_plugin_reads() -> None:
    assert get_args(Core) == get_args(plugin.Core)
    assert (told.VARIABLE, told.OPTIONS, told.SECRET) == (plugin.CORE, plugin.OPTIONS, plugin.SECRET)


def test_sglang_is_told_by_variables_and_by_nothing_where_its_own_path_is_the_only_one() -> None:
    told = commands(
        fleet("sglang", {"core": "auto", "session": {"verify": "full"}}, decode={"transfer": {"core": "pdctl"}})
    )
    assert {name: one.env["PDCTL_CORE"] for name, one in told.items()} == {"prefill": "auto", "decode": "pdctl"}
    assert json.loads(told["decode"].env["PDCTL_CORE_OPTIONS"]) == {"verify": "full"}
    own = commands(fleet("sglang", {}))
    assert all(not name.startswith("PDCTL_CORE") for one in own.values() for name in one.env)
    assert [one.argv for one in own.values()] == [one.argv for one in told.values()]


def test_vllm_gets_our_connector_on_both_sides_with_nixls_standing_by() -> None:
    made = commands(fleet("vllm", {"core": "pdctl", "session": {"verify": "full"}}))
    prefill, decode = config(made["prefill"]), config(made["decode"])
    for side, role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        assert side["kv_connector"] == "PdctlConnector"
        assert side["kv_connector_module_path"] == "pdctl_transfer.plugins.vllm_core"
        assert side["kv_role"] == role
        assert side["kv_connector_extra_config"]["backends"] == ["UCX"]
        assert "kv_buffer_device" in side
    given = {"fabric": "mooncake", "protocol": "tcp", "session": {"verify": "full"}}
    assert prefill["kv_connector_extra_config"]["pdctl"] == {
        "registry_host": "10.0.0.7",
        "registry_port": 9003,
        **given,
    }
    assert decode["kv_connector_extra_config"]["pdctl"] == given
    env = made["prefill"].env
    assert (env["MC_FORCE_TCP"], env["UCX_TLS"]) == ("1", "tcp,self")  # ours, and what stands by


@pytest.mark.parametrize("words", [("engine", "pdctl"), ("pdctl", "engine"), ("auto", "auto"), ("auto", "pdctl")])
def test_vllm_keeps_its_own_connector_on_both_sides_unless_both_are_ours(words: tuple[str, str]) -> None:
    """Of `auto` a plan decides; what nobody has decided is the engine's own."""
    sides = [{"transfer": {"core": word}} for word in words]
    loaded = fleet("vllm", {}, *sides)
    assert {config(one)["kv_connector"] for one in commands(loaded).values()} == {"MooncakeConnector"}
    assert {config(one)["kv_connector"] for one in commands(loaded, by_core=True).values()} == {"PdctlConnector"}


def test_the_plan_may_decide_against_the_core() -> None:
    made = commands(fleet("vllm", {"core": "pdctl"}), by_core=False)
    assert {config(one)["kv_connector"] for one in made.values()} == {"MooncakeConnector"}
    assert all("`pdctl check` says why" in " ".join(one.notes) for one in made.values())


def test_a_producer_has_a_port_for_its_registry_only_where_it_may_need_one() -> None:
    engine = adapter("vllm")
    for word, wanted in (("engine", False), ("pdctl", True), ("auto", True)):
        loaded = fleet("vllm", {"core": word})
        assert ("registry" in engine.purposes(loaded.pools("prefill")[0])) is wanted
        assert "registry" not in engine.purposes(loaded.pools("decode")[0])


OWN = {"args": ["--kv-transfer-config", '{"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"}']}
NAMED = {"options": {"kv_connector": "NixlConnector"}, "core": "auto"}


@pytest.mark.parametrize(
    ("engine", "transfer", "prefill", "code", "word"),
    [
        ("reference", {"core": "pdctl"}, {}, "PD0035", "transfer.core"),
        ("vllm-ascend", {"core": "auto", "protocol": "rdma"}, {}, "PD0035", "transfer.core"),
        ("vllm-ascend", {"session": {"verify": "full"}, "protocol": "rdma"}, {}, "PD0035", "transfer.session"),
        ("reference", {}, {"transfer": {"core": "engine"}}, "PD0035", "prefill.transfer.core"),
        ("sglang", {"session": {"verify": "full"}}, {}, "PD0035", "core: pdctl"),
        ("sglang", {"core": "pdctl", "session": {"verfy": "full"}}, {}, "PD0003", "verify"),
        ("sglang", {"core": "pdctl", "session": {"verify": "some"}}, {}, "PD0004", "transfer.session.verify"),
        ("sglang", {"core": "pdctl", "session": {"transfer_s": -1}}, {}, "PD0004", "cannot be -1"),
        ("vllm", {"core": "pdctl", "session": {"secret": "abc"}}, {}, "PD0043", "secret"),
        ("vllm", {"core": "pdctl"}, OWN, "PD0035", "--kv-transfer-config"),
        ("vllm", {"core": "pdctl"}, {"args": ["--kv-offloading-size", "4"]}, "PD0035", "--kv-offloading-size"),
        ("vllm", NAMED, {}, "PD0035", "transfer.options"),
    ],
)
def test_what_nobody_would_read_is_refused(
    engine: str, transfer: dict[str, Any], prefill: dict[str, Any], code: str, word: str
) -> None:
    with pytest.raises(FleetFileError) as caught:
        refuse(fleet(engine, transfer, prefill))
    assert caught.value.code == code
    assert word in f"{caught.value.message} {caught.value.hint}"


def test_a_side_that_moves_nothing_has_no_word_in_it() -> None:
    with pytest.raises(FleetFileError, match="aggregate"):
        refuse(fleet("sglang", {}, roles={"aggregate": {"transfer": {"core": "pdctl"}}}))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_engines_with_the_core_share_a_secret_that_no_command_line_shows(engine: str) -> None:
    """Whoever has it not is no peer. Engines that keep their own transfer are given none."""
    for word, given in (("pdctl", True), ("auto", True), ("engine", False)):
        plan = make_plan(fleet(engine, {"core": word}), secret=lambda: "drawn-by-up")
        for one in plan.engines:
            assert (one.unit.env.get("PDCTL_TRANSFER_SECRET") == "drawn-by-up") is given
            assert not any("drawn-by-up" in word for word in one.unit.argv)
            assert "drawn-by-up" not in str(one.instance)


def test_the_registry_has_a_port_for_each_data_parallel_rank() -> None:
    loaded = fleet("vllm", {"core": "pdctl"}, {"dp": 4, "replicas": 2, "ports": {"registry": 9300}})
    plan = make_plan(loaded)
    assert [one.instance.ports["registry"] for one in plan.of("prefill")] == [9300, 9304]


def test_vllm_is_told_the_devices_that_the_core_may_use() -> None:
    made = commands(fleet("vllm", {"core": "pdctl", "protocol": "rdma", "devices": ["mlx5_0", "mlx5_1"]}))
    assert config(made["decode"])["kv_connector_extra_config"]["pdctl"]["device"] == "mlx5_0,mlx5_1"


def test_every_option_of_the_core_may_be_given_but_the_secret() -> None:
    """What a session can be told, a fleet file can say."""
    given = {name: getattr(Options(), name) for name in Options.__struct_fields__ if name != "secret"}
    refuse(fleet("sglang", {"core": "pdctl", "session": {k: v for k, v in given.items() if v is not None}}))


@pytest.mark.parametrize(("core", "word"), [("engine", "mooncake"), ("pdctl", "nixl")])
def test_the_router_of_vllm_hands_over_what_our_connector_answers(core: str, word: str) -> None:
    """Mooncake's own connector is asked by a transfer id, ours as NIXL's is: prefill's answer goes on to decode."""
    plan = make_plan(fleet("vllm", {"core": core}))
    assert plan.router.argv[plan.router.argv.index("--kv-connector") + 1] == word
    assert {one.instance.by_core for one in plan.engines} == {core == "pdctl"}
