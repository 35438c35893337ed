"""One engine on several nodes: each node's own command, and what the local launcher can start of it."""

import json
from pathlib import Path

import pytest

from pdctl.errors import InputError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.launch.together import apart
from pdctl.up.nodes import unstartable
from pdctl.up.plan import EngineUnit, make_plan
from pdctl.up.runner import bring_up


def load(engine: str, prefill: str, decode: str = "{}", more: str = "") -> LoadedFleet:
    backend = "nixl" if engine == "vllm" else "mooncake"
    text = (
        f"schema: pdctl.fleet/v1\nname: nodes\nmodel: {{path: models/M}}\nengine: {engine}\n"
        f"transfer: {{backend: {backend}, protocol: tcp}}\nprefill: {prefill}\ndecode: {decode}\n{more}"
    )
    return parse_fleet(text.encode(), Path("f.yaml"))


def nodes(engine: str, prefill: str) -> EngineUnit:
    return make_plan(load(engine, prefill)).engines[0]


def flags(one: EngineUnit, *names: str) -> list[list[str | None]]:
    """Of each node the values of these flags; the flag itself for a switch."""
    return [[_value(node.argv, name) for name in names] for node in one.nodes]


def _value(argv: tuple[str, ...], name: str) -> str | None:
    if name not in argv:
        return None
    at = argv.index(name) + 1
    return name if at == len(argv) or argv[at].startswith("--") else argv[at]


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_sglangs_nodes_meet_at_the_first_host() -> None:
    one = nodes("sglang", "{attn_tp: 2, dp: 8, nodes: 2, hosts: [p0, me@p1], ports: {dist_init: 5000}, ep: 16}")
    assert [node.host for node in one.nodes] == ["p0", "p1"]
    names = ("--tp-size", "--nnodes", "--node-rank", "--dist-init-addr", "--host", "--ep-size")
    assert flags(one, *names) == [
        ["16", "2", "0", "p0:5000", "p0", "16"],
        ["16", "2", "1", "p0:5000", "p1", "16"],
    ]
    ports = flags(one, "--disaggregation-bootstrap-port")
    assert ports[0] == ports[1], "the first node opens it for all"


def test_a_given_meeting_place_and_one_in_args() -> None:
    """IPv6 in brackets, as a socket address; what `args` say stands in the field's place."""
    sizes = "attn_tp: 2, nodes: 2, hosts: [a, b]"
    given = nodes("sglang", f"{{{sizes}, dist_init_address: 'fd00::1', ports: {{dist_init: 5000}}}}")
    assert flags(given, "--dist-init-addr") == [["[fd00::1]:5000"]] * 2
    spoken = nodes("sglang", f"{{{sizes}, args: [--dist-init-addr, 'x:7']}}")
    assert flags(spoken, "--dist-init-addr") == [["x:7"]] * 2
    assert [node.argv.count("--dist-init-addr") for node in spoken.nodes] == [1, 1]


def test_vllms_nodes_that_hold_whole_ranks_get_ranges() -> None:
    one = nodes("vllm", "{dp: 8, nodes: 2, hosts: [p0, p1], dp_local: [6, 2], ports: {dist_init: 5000}}")
    names = ("--data-parallel-size-local", "--data-parallel-start-rank", "--data-parallel-address", "--headless")
    assert flags(one, *names, "--nnodes", "--data-parallel-rpc-port") == [
        ["6", None, "p0", None, None, "5000"],
        ["2", "6", "p0", "--headless", None, "5000"],
    ]
    assert [node.host for node in one.serving] == ["p0"]


def test_vllms_ranks_that_span_nodes_form_one_group() -> None:
    one = nodes("vllm", "{attn_tp: 16, nodes: 2, hosts: [p0, p1], ports: {dist_init: 5000}}")
    assert flags(one, "--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless") == [
        ["2", "0", "p0", "5000", None],
        ["2", "1", "p0", "5000", "--headless"],
    ]
    assert flags(one, "--data-parallel-size-local") == [[None], [None]]


@pytest.mark.parametrize(
    ("mode", "nodes_", "want"),
    [
        ("hybrid", 2, [["2", "0", "--data-parallel-hybrid-lb", None], ["2", "2", "--data-parallel-hybrid-lb", None]]),
        ("external", 4, [[None, None, None, str(rank)] for rank in range(4)]),
    ],
)
def test_every_node_that_takes_requests_is_the_routers(mode: str, nodes_: int, want: list[list[str]]) -> None:
    pool = f"{{dp: 4, nodes: {nodes_}, hosts: [a, a, b, b], load_balancing: {mode}, ports: {{http: 8000}}}}"
    plan = make_plan(load("vllm", pool, more="router: {kind: vllm-router}"))
    one = plan.engines[0]
    names = ("--data-parallel-size-local", "--data-parallel-start-rank", "--data-parallel-hybrid-lb")
    assert flags(one, *names, "--data-parallel-rank") == want
    assert all("--headless" not in node.argv for node in one.nodes)
    argv = plan.router.argv
    urls = [node.url for node in one.serving]
    assert len(set(urls)) == nodes_
    assert all(url in " ".join(argv) for url in urls)


def test_nodes_on_one_host_share_ports_and_accelerators_out() -> None:
    """Here: one unit, in which each node has what only it has before its program."""
    one = nodes("sglang", "{attn_tp: 4, nodes: 2, devices: [0, 1, 2, 3], ports: {http: 31000}}")
    assert flags(one, "--port", "--node-rank") == [["31000", "0"], ["31001", "1"]]
    assert [node.env["CUDA_VISIBLE_DEVICES"] for node in one.nodes] == ["0,1", "2,3"]
    assert one.unit.ports["http.1"] == 31001
    assert "dist_init.1" not in one.unit.ports
    commands = list(apart(one.unit.argv[one.unit.argv.index("pdctl.launch.together") + 1 :]))
    assert [own for own, _ in commands] == [{"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,3"}]
    assert [tuple(argv) for _, argv in commands] == [node.argv for node in one.nodes]


def test_ports_of_an_engine_are_kept_from_run_to_run() -> None:
    loaded = load("sglang", "{attn_tp: 4, nodes: 2, replicas: 2}")
    first = make_plan(loaded)
    again = make_plan(loaded, {unit.name: unit.ports for unit in first.units})
    assert [unit.digest for unit in again.units] == [unit.digest for unit in first.units]
    every = [port for unit in first.units for port in unit.ports.values()]
    assert len(set(every)) == len(every)


@pytest.mark.code("PD3116")
@pytest.mark.parametrize(
    ("hosts", "refused"), [("[a, b]", True), ("[localhost, b]", True), ("[localhost, localhost]", False)]
)
def test_hosts_out_of_reach_start_nothing_and_are_planned(hosts: str, refused: bool) -> None:
    loaded = load("sglang", f"{{attn_tp: 2, nodes: 2, hosts: {hosts}}}")
    assert len(make_plan(loaded).engines[0].nodes) == 2
    assert [fault.code for fault in unstartable(loaded)] == (["PD3116"] if refused else [])
    if refused:
        with pytest.raises(InputError) as caught:
            bring_up(loaded)
        assert (caught.value.code, caught.value.where) == ("PD3116", "f.yaml:6")


@pytest.mark.code("PD3117")
@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--nnodes", "2"], True),
        (["--node-rank", "1"], True),
        (["--nnodes", "1"], False),
        (["--log-level", "debug"], False),
    ],
)
def test_nodes_that_only_flags_speak_of(words: list[str], refused: bool) -> None:
    loaded = load("sglang", f"{{attn_tp: 2, args: {json.dumps(words)}}}")
    assert [fault.code for fault in unstartable(loaded)] == (["PD3117"] if refused else [])


@pytest.mark.code("PD3102")
@pytest.mark.parametrize(
    ("engine", "pool", "words", "refused"),
    [
        ("sglang", "attn_tp: 2, nodes: 2", ["--nnodes", "2"], False),
        ("sglang", "attn_tp: 2, nodes: 2", ["--nnodes", "1"], True),
        ("sglang", "attn_tp: 2, nodes: 2", ["--node-rank", "0"], True),
        ("sglang", "attn_tp: 2, ep: 2", ["--expert-parallel-size", "1"], True),
        ("sglang", "attn_tp: 2, nodes: 2, ports: {dist_init: 5000}", ["--dist-init-addr", "a:5001"], True),
        ("vllm", "dp: 2, nodes: 2", ["--data-parallel-size-local", "1"], False),
        ("vllm", "dp: 2, nodes: 2", ["--data-parallel-size-local", "2"], True),
        ("vllm", "dp: 2, nodes: 2", ["--data-parallel-start-rank", "1"], True),
        ("vllm", "dp: 2, nodes: 2", ["--headless"], True),
        ("vllm", "dp: 2, ep: 2", ["--enable-expert-parallel"], False),
        ("vllm", "dp: 2, ep: 1", ["--enable-expert-parallel"], True),
        ("vllm", "dp: 2, nodes: 2, dist_init_address: a", ["--data-parallel-address", "b"], True),
        ("vllm", "dp: 4, nodes: 2, load_balancing: hybrid", ["--data-parallel-external-lb"], True),
    ],
)
def test_a_flag_beside_its_field_says_the_same(engine: str, pool: str, words: list[str], refused: bool) -> None:
    loaded = load(engine, f"{{{pool}, args: {json.dumps(words)}}}")
    if not refused:
        make_plan(loaded)
        return
    with pytest.raises(InputError) as caught:
        make_plan(loaded)
    assert caught.value.code == "PD3102"


@pytest.mark.code("PD0035")
def test_what_one_node_has_no_use_for() -> None:
    with pytest.raises(InputError, match="an engine of one node does not read it") as caught:
        make_plan(load("vllm", "{dp: 2, dp_local: [2]}"))
    assert caught.value.code == "PD0035"
    with pytest.raises(InputError, match="network: the local launcher does not read it"):
        make_plan(load("sglang", "{}", more="network: own"))
