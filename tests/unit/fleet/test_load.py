"""The fleet file: every wrong value is told with file, line, key, found and expected; every right one has an origin."""

from pathlib import Path

import pytest

from pdctl.errors import FleetFileError
from pdctl.fleet import LoadedFleet, load_fleet, parse_fleet

EXAMPLES = Path(__file__).parents[3] / "examples"

BASE = {
    "schema": "pdctl.fleet/v1",
    "name": "f",
    "model": "{path: builtin:tiny-hybrid}",
    "engine": "reference",
    "prefill": "{}",
    "decode": "{}",
}


def load(**changes: str | None) -> LoadedFleet:
    fields = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return parse_fleet("".join(f"{key}: {value}\n" for key, value in fields.items()).encode(), Path("f.yaml"))


def fault(**changes: str | None) -> FleetFileError:
    with pytest.raises(FleetFileError) as caught:
        load(**changes)
    return caught.value


@pytest.mark.code("PD0004")
@pytest.mark.parametrize(
    ("changes", "where", "message", "hint"),
    [
        (
            {"transfer": "{protocol: rmda}"},
            "f.yaml:7",
            'transfer.protocol: found "rmda", expected one of rdma, tcp',
            'did you mean "rdma"?',
        ),
        ({"schema": "pdctl.fleet/v2"}, "f.yaml:1", 'schema: found "pdctl.fleet/v2", expected pdctl.fleet/v1', None),
        ({"prefill": "{page_size: 0}"}, "f.yaml:5", "prefill.page_size: found 0, expected a number from 1", None),
        (
            {"prefill": '{page_size: "16"}'},
            "f.yaml:5",
            'prefill.page_size: found "16", expected a whole number',
            "write it without quotes",
        ),
        ({"decode": "{attn_tp: 1.5}"}, "f.yaml:6", "decode.attn_tp: found 1.5, expected a whole number", None),
        ({"decode": "7"}, "f.yaml:6", "decode: found 7, expected a pool (a mapping), or a list", None),
        (
            {"prefill": ""},
            "f.yaml:5",
            "prefill: found null, expected a pool (a mapping), or a list of pools",
            "write {} for a pool",
        ),
        (
            {"roles": "{prefill: {}}"},
            "f.yaml:7",
            "roles.prefill: prefill has its own place",
            "write `prefill:` at the top of the file",
        ),
        ({"roles": "{aggregat: {}}"}, "f.yaml:7", "roles.aggregat: unknown role", 'did you mean "aggregate"?'),
        ({"decode": "[]"}, "f.yaml:6", "decode: found [], expected at least one", None),
        ({"name": "no"}, "f.yaml:2", "name: found false, expected text", None),
        ({"name": "My Fleet"}, "f.yaml:2", 'name: found "My Fleet", expected lower-case letters', None),
        ({"router": "{port: 70000}"}, "f.yaml:7", "router.port: found 70000, expected a number up to 65535", None),
        ({"prefill": "{env: {3: x}}"}, "f.yaml:5", "prefill.env: found the key 3, expected text", "quote it"),
        (
            {"prefill": "{env: {A: yes}}"},
            "f.yaml:5",
            "prefill.env.A: found true, expected text",
            "YAML reads this word as true; quote it",
        ),
        (
            {"prefill": '{args: ["--mem-fraction-static 0.8"]}'},
            "f.yaml:5",
            'prefill.args.0: found "--mem-fraction-static 0.8", expected one word',
            'write two items: "--mem-fraction-static", "0.8"',
        ),
    ],
)
def test_a_wrong_value_is_told_with_what_would_be_right(
    changes: dict[str, str], where: str, message: str, hint: str | None
) -> None:
    error = fault(**changes)
    assert (error.code, error.where) == ("PD0004", where)
    assert error.message.startswith(message)
    assert hint is None or (error.hint or "").startswith(hint)


@pytest.mark.code("PD0004")
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": "{path: ''}"}, "model.path: found ''"),
        ({"model": r'{path: "a\0b"}'}, r"model.path: found 'a\x00b'"),
        ({"router": "{host: not a host}"}, "router.host: found 'not a host'"),
        ({"router": "{host: ''}"}, "router.host: found ''"),
        ({"prefill": "{hosts: []}"}, "prefill.hosts: found []"),
        ({"prefill": "{hosts: ['']}"}, "prefill.hosts.0: found ''"),
        ({"decode": "{hosts: [a, '-oProxyCommand=touch x']}"}, "decode.hosts.1: found '-oProxyCommand=touch x'"),
        ({"decode": "{hosts: ['a;b']}"}, "decode.hosts.0: found 'a;b'"),
        ({"decode": "{devices: ['a/../b']}"}, "decode.devices.0: found 'a/../b'"),
        ({"decode": "{devices: ['0', '']}"}, "decode.devices.1: found ''"),
        ({"transfer": "{devices: ['mlx5_0,mlx5_1']}"}, "transfer.devices.0: found 'mlx5_0,mlx5_1'"),
        ({"decode": "[{name: a}, {name: b, environment: ''}]"}, "decode.1.environment: found ''"),
        ({"prefill": r'{env: {X: "a\0b"}}'}, r"prefill.env.X: found 'a\x00b'"),
        ({"prefill": r'{args: [--a, "\0"]}'}, r"prefill.args.1: found '\x00'"),
        ({"transfer": r'{options: {a: {b: ["\0"]}}}'}, r"transfer.options.a.b.0: found '\x00'"),
    ],
)
def test_a_text_that_cannot_be_what_it_stands_for(changes: dict[str, str], key: str) -> None:
    """Accepted, it would be met by a shell, a kernel or SSH, in whose words nobody finds the line."""
    error = fault(**changes)
    line = 3 if "model" in changes else 5 if "prefill" in changes else 6 if "decode" in changes else 7
    assert (error.code, error.where, error.others) == ("PD0004", f"f.yaml:{line}", ())
    assert error.message.startswith(f"{key}, expected ")


@pytest.mark.parametrize(
    "changes",
    [
        {"router": "{host: '::1'}"},
        {"router": "{host: 0.0.0.0}"},
        {"prefill": "{hosts: [node-1.rack_2.example, user@10.0.0.1, 'fe80::1%eth0', 127.0.0.1]}"},
        {"prefill": "{devices: [0, GPU-8932f937-d72c-4106-c12f-20bd9faed9f6, 'MIG-GPU-8932/1/0']}"},
        {"transfer": "{devices: [mlx5_0, 'mlx5_bond_1:1', rocep1s0f0]}"},
        {"roles": "{encode: {}, ordinary: {}}"},
        {"prefill": "{env: {LD_PRELOAD: /x.so, a.b: c, PYTHONPATH: /x, PDCTL_TRANSFER_SECRET: s, EMPTY: ''}}"},
    ],
)
def test_texts_that_can_be_what_they_stand_for(changes: dict[str, str]) -> None:
    load(**changes)


@pytest.mark.code("PD0034")
@pytest.mark.parametrize("section", ["prefill", "router"])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("A=B", "found 'A=B', which no environment can hold"),
        ("", "found '', which no environment can hold"),
        ("A B", "found 'A B', which no environment can hold"),
        ("A\\0", r"found 'A\x00', which no environment can hold"),
        ("PDCTL_UNIT", "PDCTL_UNIT is set by pdctl"),
        ("PYTHONSAFEPATH", "PYTHONSAFEPATH is set by pdctl"),
    ],
)
def test_a_variable_that_no_process_can_get_or_that_marks_ours(section: str, name: str, says: str) -> None:
    error = fault(**{section: f'{{env: {{"{name}": x}}}}'})
    assert (error.code, error.message) == ("PD0034", f"{section}.env: {says}")
    assert error.where == ("f.yaml:5" if section == "prefill" else "f.yaml:7")


@pytest.mark.code("PD0004")
@pytest.mark.parametrize(
    ("pool", "message", "hint"),
    [
        ("{replicas: 3, ports: {http: 65535}}", "the last would have 65537", "give 65533 at most"),
        ("{replicas: 4, hosts: [a, b], ports: {http: 65535}}", "the last would have 65536", "give 65534 at most"),
    ],
)
def test_replicas_do_not_count_past_the_last_port(pool: str, message: str, hint: str) -> None:
    error = fault(prefill=pool)
    assert (error.code, error.where, error.hint) == ("PD0004", "f.yaml:5", hint)
    assert error.message == f"prefill.ports.http: found 65535, but replicas count up from it, and {message}"
    load(prefill="{replicas: 2, hosts: [a, b], ports: {http: 65535}}")


@pytest.mark.code("PD0003")
@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"prefil": "{}"}, "prefil: unknown key", 'did you mean "prefill"?'),
        ({"decode": "{page_sise: 16}"}, "decode.page_sise: unknown key", 'did you mean "page_size"?'),
        ({"decode": "[{name: a}, {name: b, tp: 2}]"}, "decode.1.tp: unknown key", 'did you mean "attn_tp"?'),
        ({"roles": "{encode: {xyz: 1}}"}, "roles.encode.xyz: unknown key", "known here: name, replicas"),
        ({"model": "{path: x, paht: y}"}, "model.paht: unknown key", 'did you mean "path"?'),
    ],
)
def test_an_unknown_key_is_never_a_default(changes: dict[str, str], message: str, hint: str) -> None:
    error = fault(**changes)
    assert (error.code, error.message) == ("PD0003", message)
    assert (error.hint or "").startswith(hint)


@pytest.mark.code("PD0005")
def test_a_missing_key_is_told_where_it_belongs() -> None:
    error = fault(model="{}")
    assert (error.code, error.where, error.message) == ("PD0005", "f.yaml:3", "model.path: missing")
    assert "config.json" in (error.hint or "")


def test_all_faults_come_in_the_order_of_the_file() -> None:
    error = fault(transfer="{backend: moncake}", name="UP", decode="{pp: 0}")
    assert [one.where for one in (error, *error.others)] == ["f.yaml:2", "f.yaml:6", "f.yaml:7"]


@pytest.mark.code("PD0008")
@pytest.mark.parametrize(
    "changes",
    [{"prefill": "[{name: a}, {name: a}]"}, {"prefill": "[{name: router}]"}, {"prefill": "[{name: decode}]"}],
)
def test_pools_that_cannot_be_told_apart(changes: dict[str, str]) -> None:
    assert fault(**changes).code == "PD0008"


@pytest.mark.code("PD0009")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"prefill": "{ports: {http: 8000, bootstrap: 8000}}"},
            "prefill.ports.bootstrap: port 8000 on localhost is already prefill.ports.http's",
        ),
        (
            {"prefill": "{replicas: 3, ports: {http: 8000}}", "decode": "{ports: {http: 8002}}"},
            "decode.ports.http: port 8002 on localhost is already prefill.ports.http's",
        ),
        (
            {"router": "{port: 8000}", "decode": "{ports: {http: 8000}}"},
            "decode.ports.http: port 8000 on localhost is already router.port's",
        ),
    ],
)
def test_a_port_is_given_once_a_host(changes: dict[str, str], message: str) -> None:
    error = fault(**changes)
    assert (error.code, error.message) == ("PD0009", message)


def test_the_same_port_on_two_hosts_is_no_fault() -> None:
    load(prefill="{hosts: [a], ports: {http: 8000}}", decode="{hosts: [b], ports: {http: 8000}}")
    load(prefill="{replicas: 2, hosts: [a, b], ports: {http: 8000}}")


def test_every_value_knows_where_it_comes_from() -> None:
    loaded = load(prefill="{page_size: 32}", decode="[{name: short}, {name: long, page_size: 64}]")
    assert loaded.source("prefill.page_size") == "f.yaml:5"
    assert loaded.source("prefill.0.page_size") == "f.yaml:5"
    assert loaded.source("decode.1.page_size") == "f.yaml:6"
    assert loaded.source("decode.0.page_size").startswith("default of pdctl ")
    assert loaded.where("decode.0.page_size") == "f.yaml:6"
    assert [pool.key for pool in loaded.pools()] == ["prefill", "decode.0", "decode.1"]


def test_the_set_of_roles_is_open() -> None:
    loaded = load(roles="{encode: {replicas: 2}, aggregate: [{name: solo}]}")
    assert [(pool.role, pool.name, pool.key) for pool in loaded.pools()][2:] == [
        ("encode", "encode", "roles.encode"),
        ("aggregate", "solo", "roles.aggregate.0"),
    ]
    assert loaded.pools("encode")[0].members == ["encode-0", "encode-1"]


def test_anchors_share_settings_between_pools() -> None:
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: m}\nengine: sglang\n"
        "prefill: &pool\n  page_size: 64\n  attn_tp: 4\ndecode:\n  <<: *pool\n  attn_tp: 8\n"
    )
    loaded = parse_fleet(text.encode(), Path("f.yaml"))
    assert (loaded.pools("decode")[0].page_size, loaded.pools("decode")[0].attn_tp) == (64, 8)
    assert loaded.source("decode.page_size") == "f.yaml:6"
    assert loaded.source("decode.attn_tp") == "f.yaml:10"


def test_a_number_as_a_variable_or_flag_is_text() -> None:
    pool = load(prefill="{env: {OMP_NUM_THREADS: 1}, args: [--port-range, 5]}").pools("prefill")[0]
    assert (pool.env, pool.args) == ({"OMP_NUM_THREADS": "1"}, ["--port-range", "5"])


@pytest.mark.parametrize(
    ("path", "name"), [("builtin:tiny-hybrid", "tiny-hybrid"), ("/m/Qwen/Qwen4/", "Qwen4"), ("a/b", "b")]
)
def test_the_served_name_is_the_last_part_of_the_path(path: str, name: str) -> None:
    assert load(model=f"{{path: '{path}'}}").fleet.model.served_name == name


def test_a_relative_model_is_found_beside_the_fleet_file(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    text = "".join(f"{key}: {value}\n" for key, value in {**BASE, "model": "{path: weights}"}.items())
    (tmp_path / "f.yaml").write_text(text)
    assert load_fleet(tmp_path / "f.yaml").model_path == str(tmp_path / "weights")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_loads(path: Path) -> None:
    load_fleet(path)


@pytest.mark.code("PD0036")
def test_hosts_are_taken_as_many_at_a_time_as_an_engine_has_nodes() -> None:
    error = fault(prefill="{nodes: 2, hosts: [a, b, c]}")
    assert (error.code, error.message) == ("PD0036", "prefill.hosts: 3 hosts cannot be taken 2 at a time")
    pool = load(prefill="{replicas: 3, nodes: 2, hosts: [a, b, c, d]}").pools("prefill")[0]
    assert [pool.places(index) for index in range(3)] == [
        [("a", 0), ("b", 0)],
        [("c", 0), ("d", 0)],
        [("a", 1), ("b", 1)],
    ]


@pytest.mark.code("PD0037")
def test_each_engine_meets_at_an_address_of_its_own() -> None:
    sizes = "replicas: 2, nodes: 2, hosts: [a, b, c, d]"
    error = fault(prefill=f"{{{sizes}, dist_init_address: a}}")
    assert (error.code, error.where) == ("PD0037", "f.yaml:5")
    load(prefill=f"{{{sizes}, dist_init_address: [a, c]}}")
    error = fault(prefill="{nodes: 2, dist_init_address: '10.0.0.1:5000'}")
    assert (error.code, error.hint) == ("PD0004", "the port is `ports.dist_init`")


@pytest.mark.code("PD0009")
@pytest.mark.parametrize(
    ("engine", "prefill", "decode", "clash"),
    [
        ("sglang", "{nodes: 2, hosts: [a, b], ports: {http: 80}}", "{hosts: [b], ports: {http: 80}}", True),
        # only SGLang's further nodes answer /health
        ("vllm", "{nodes: 2, hosts: [a, b], ports: {http: 80}}", "{hosts: [b], ports: {http: 80}}", False),
        ("sglang", "{hosts: [a], ports: {http: 80}}", "{hosts: [a], ports: {http: 80}}", True),
        # pods do not share ports
        ("sglang", "{hosts: [a], network: own, ports: {http: 80}}", "{hosts: [a], ports: {http: 80}}", False),
        # where nodes meet an engine opens eight ports
        ("sglang", "{nodes: 2, replicas: 2, ports: {dist_init: 80}}", "{ports: {http: 88}}", False),
        ("sglang", "{nodes: 2, replicas: 2, ports: {dist_init: 80}}", "{ports: {http: 96}}", True),
    ],
)
def test_ports_of_nodes_and_pods(engine: str, prefill: str, decode: str, clash: bool) -> None:
    if clash:
        assert fault(engine=engine, prefill=prefill, decode=decode).code == "PD0009"
    else:
        load(engine=engine, prefill=prefill, decode=decode)


def test_a_network_of_the_fleet_is_every_pools() -> None:
    loaded = load(network="own", prefill="{replicas: 2, ports: {http: 80}}", decode="{network: host}")
    assert [pool.shares_ports for pool in loaded.pools()] == [False, True]
    assert [loaded.pools()[0].place(index) for index in range(2)] == [("localhost", 0), ("localhost", 0)]
