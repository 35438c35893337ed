"""Fleet file → command lines of the real engines: what they get, and what is refused before anything starts."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from pdctl.derive.flags import apply
from pdctl.derive.request import Request
from pdctl.engines import adapter
from pdctl.engines.base import Command, Instance
from pdctl.engines.sglang import adapter as sglang
from pdctl.engines.sglang.stages import stage as sglang_stage
from pdctl.engines.vllm.stages import stage as vllm_stage
from pdctl.errors import GateError, InputError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.up.plan import make_plan

EXAMPLES = Path(__file__).parents[3] / "examples"


def fleet(engine: str, **changes: Any) -> LoadedFleet:
    name = "tiny-hybrid" if engine == "reference" else f"{engine}-cpu"
    document = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())
    for key, value in changes.items():
        document[key] = {**document[key], **value} if isinstance(value, dict) else value
    return parse_fleet(yaml.safe_dump(document).encode(), Path("fleet.yaml"))


def instance(loaded: LoadedFleet, role: str) -> Instance:
    pool = loaded.pools(role)[0]
    engine = adapter(loaded.fleet.engine)
    ports = {purpose: 9000 + place for place, purpose in enumerate(engine.purposes(pool))}
    return Instance(pool.members[0], pool, loaded.fleet, loaded.model_path, "127.0.0.1", ports)


def command(loaded: LoadedFleet, role: str) -> Command:
    return adapter(loaded.fleet.engine).command(instance(loaded, role))


def value(made: Command, flag: str) -> str | None:
    return made.argv[made.argv.index(flag) + 1] if flag in made.argv else None


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PDCTL_SGLANG_PYTHON", raising=False)
    monkeypatch.delenv("PDCTL_VLLM_PYTHON", raising=False)


def test_sglang_prefill_and_decode_meet_at_one_bootstrap_port() -> None:
    loaded = fleet("sglang")
    prefill, decode = command(loaded, "prefill"), command(loaded, "decode")
    assert value(prefill, "--disaggregation-bootstrap-port") == "9001"
    assert value(decode, "--disaggregation-bootstrap-port") is None  # it runs no bootstrap server
    assert (value(prefill, "--disaggregation-mode"), value(decode, "--disaggregation-mode")) == ("prefill", "decode")


def test_sglang_decode_on_cpu_gets_the_backup_without_which_it_does_not_start() -> None:
    flag = "--disaggregation-decode-retraction-backup"
    loaded = fleet("sglang")
    assert value(command(loaded, "decode"), flag) == "cpu_tensor"
    assert value(command(loaded, "prefill"), flag) is None
    assert any(flag in note for note in command(loaded, "decode").notes)


def test_what_args_say_is_not_said_twice() -> None:
    loaded = fleet("sglang", decode={"args": ["--device", "cpu", "--attention-backend=torch_native"]})
    assert sum(word.startswith("--attention-backend") for word in command(loaded, "decode").argv) == 1


def test_tcp_is_tcp_even_where_there_are_hcas() -> None:
    assert command(fleet("sglang"), "prefill").env["MC_FORCE_TCP"] == "1"
    rdma = fleet("sglang", transfer={"protocol": "rdma", "devices": ["mlx5_0", "mlx5_1"]})
    assert "MC_FORCE_TCP" not in command(rdma, "prefill").env
    assert value(command(rdma, "prefill"), "--disaggregation-ib-device") == "mlx5_0,mlx5_1"


@pytest.mark.parametrize("engine", ["reference", "sglang", "vllm"])
@pytest.mark.parametrize("backend", ["mooncake", "nixl"])
def test_the_devices_of_the_fleet_reach_what_moves_the_bytes(engine: str, backend: str) -> None:
    """In the spelling that each of them reads: Mooncake bare names without blanks, UCX names with a port."""
    devices = ["mlx5_0", "mlx5_1"]
    loaded = fleet(engine, transfer={"backend": backend, "protocol": "rdma", "devices": devices})
    for role in ("prefill", "decode"):
        made = command(loaded, role)
        if engine == "sglang":
            assert value(made, "--disaggregation-ib-device") == "mlx5_0,mlx5_1"
        elif backend == "nixl":
            assert made.env["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"
        elif engine == "vllm":
            config = json.loads(value(made, "--kv-transfer-config") or "")
            assert config["kv_connector_extra_config"]["device_name"] == "mlx5_0,mlx5_1"
        else:
            assert value(made, "--transfer-devices") == "mlx5_0,mlx5_1"


def test_attention_tp_becomes_the_engines_own_tp() -> None:
    """--tp-size counts all ranks: attention TP 2 under DP 4 is TP 8."""
    made = command(fleet("sglang", decode={"attn_tp": 2, "dp": 4}), "decode")
    assert value(made, "--tp-size") == "8"
    assert value(made, "--dp-size") == "4"
    assert "--enable-dp-attention" in made.argv


def test_ranks_on_one_cpu_are_bound_or_sglang_refuses_more_than_numa_nodes() -> None:
    name = "SGLANG_CPU_OMP_THREADS_BIND"
    for sizes, ranks in (({"attn_tp": 2}, 2), ({"pp": 2}, 2), ({"attn_tp": 2, "pp": 2}, 4)):
        assert command(fleet("sglang", decode=sizes), "decode").env[name].count("|") == ranks - 1
    assert name not in command(fleet("sglang"), "decode").env


def test_decode_misses_a_prefill_engine_that_its_guard_has_back_in_seconds() -> None:
    """Two missed heartbeats must fit into the fastest restart; whoever knows better says so in the pool's `env`."""
    name = "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL"
    assert float(command(fleet("sglang"), "decode").env[name]) * 2 < 5
    assert command(fleet("sglang", decode={"env": {name: "9"}}), "decode").env[name] == "9"


@pytest.mark.code("PD3103")
def test_what_the_engines_parser_refuses_names_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_SGLANG_PYTHON", sys.executable)
    script = "import json, sys\nfor i, argv in enumerate(json.load(sys.stdin)):\n print(i, flush=True)\n"
    script += " sys.exit('error: unrecognized arguments: --nope') if '--nope' in argv else None\n"
    engine = structs.replace(sglang.ADAPTER, parser=script)
    loaded = fleet("sglang", decode={"args": ["--nope"]})
    with pytest.raises(InputError, match=r"^sglang refuses its flags: error: unrecognized") as caught:
        engine.validate([instance(loaded, "prefill"), instance(loaded, "decode")])
    assert (caught.value.code, caught.value.where) == ("PD3103", "decode.args")
    engine.validate([instance(loaded, "prefill")])


@pytest.mark.code("PD0056")
def test_a_parser_that_does_not_answer_in_time_is_named_with_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_SGLANG_PYTHON", sys.executable)
    monkeypatch.setattr("pdctl.engines.real.PARSED_S", 0.2)
    engine = structs.replace(sglang.ADAPTER, parser="import time; time.sleep(60)")
    with pytest.raises(GateError) as caught:
        engine.validate([instance(fleet("sglang"), "prefill")])
    assert caught.value.code == "PD0056"
    assert caught.value.message == f"{sys.executable} did not say within 0.2 s whether sglang takes its flags"


@pytest.mark.code("PD3104")
@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_reference_engines_models_are_not_theirs(engine: str) -> None:
    loaded = fleet(engine, model={"path": "builtin:tiny-hybrid"})
    with pytest.raises(InputError, match="cannot serve builtin:tiny-hybrid") as caught:
        adapter(engine).needs(loaded.fleet, loaded.pools("decode")[0])
    assert caught.value.code == "PD3104"


@pytest.mark.code("PD3105")
@pytest.mark.parametrize("backend", ["mori", "ascend"])
def test_a_plan_names_a_backend_without_connector(backend: str) -> None:
    with pytest.raises(InputError, match=f"no connector of vllm for {backend}"):
        make_plan(fleet("vllm", transfer={"backend": backend}))


@pytest.mark.code("PD3105")
def test_a_backend_without_connector_is_named() -> None:
    loaded = fleet("vllm", transfer={"backend": "ascend"})
    with pytest.raises(InputError, match="no connector of vllm for ascend") as caught:
        adapter("vllm").needs(loaded.fleet, loaded.pools("decode")[0])
    assert caught.value.code == "PD3105"


def test_vllm_sides_have_side_channels_of_their_own() -> None:
    """Two engines of one host that keep the default port answer each other's handshakes."""
    loaded = fleet("vllm")
    made = command(loaded, "prefill")
    assert made.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9001"
    config = json.loads(value(made, "--kv-transfer-config") or "")
    assert (config["kv_connector"], config["kv_role"]) == ("NixlConnector", "kv_producer")
    assert json.loads(value(command(loaded, "decode"), "--kv-transfer-config") or "")["kv_role"] == "kv_consumer"


def test_connector_options_of_the_fleet_file_reach_the_connector() -> None:
    options = {"kv_connector_extra_config": {"kv_lease_duration": 60}, "kv_load_failure_policy": "fail"}
    made = command(fleet("vllm", transfer={"options": options}), "prefill")
    config = json.loads(value(made, "--kv-transfer-config") or "")
    assert config["kv_connector_extra_config"] == {"backends": ["UCX"], "kv_lease_duration": 60}
    assert config["kv_load_failure_policy"] == "fail"


def test_an_aggregate_engine_is_no_side_of_a_pair() -> None:
    for engine, flag in (("sglang", "--disaggregation-mode"), ("vllm", "--kv-transfer-config")):
        document = yaml.safe_load((EXAMPLES / f"{engine}-cpu.yaml").read_text())
        document["roles"] = {"aggregate": document["prefill"]}
        loaded = parse_fleet(yaml.safe_dump(document).encode(), Path("fleet.yaml"))
        assert value(command(loaded, "aggregate"), flag) is None


@pytest.mark.parametrize(
    ("stage", "log", "expected"),
    [
        (sglang_stage, "nothing yet", None),
        (sglang_stage, "server_args={}\nLoad weight begin.\n", "loading weights"),
        (sglang_stage, "The server is fired up\n…\nserver_args={}\nInit parallel begin.", "joining ranks"),
        (sglang_stage, "Load weight begin\nScheduler hit an exception: …", "failed: Scheduler hit an exception"),
        (vllm_stage, "Starting to load model X\nLoading weights took 1.0 s", "allocating the KV cache"),
        (vllm_stage, "Worker proc VllmWorker-0 died unexpectedly", "failed: died unexpectedly"),
    ],
)
def test_stages_follow_the_log_of_the_last_start(stage: Any, log: str, expected: str | None) -> None:
    assert stage(log) == expected


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("sizes", [{"attn_tp": 2}, {"attn_tp": 2, "dp": 2}, {"attn_tp": 4, "pp": 2, "dp": 2}])
def test_what_is_started_cuts_the_buffers_as_what_was_judged(engine: str, sizes: dict[str, int]) -> None:
    """The command line, read as if a stranger had written it, over the same ranks as the fields."""
    loaded = fleet(engine, prefill=sizes)
    made = command(loaded, "prefill")
    plain = Request(engine=engine, role="prefill", config={})
    read = apply(plain, made.argv[made.argv.index("--served-model-name") :])
    assert (read.attn_tp, read.pp) == (sizes["attn_tp"], sizes.get("pp", 1))
