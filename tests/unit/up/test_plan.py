"""From a fleet file to command lines: ports, hosts, router flags, and what cannot be is told at the file's line."""

import socket
from pathlib import Path

import pytest

from pdctl.errors import InputError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.routers import ROUTERS, Backend, router_argv
from pdctl.up.plan import FleetPlan, make_plan


def load(prefill: str = "{}", decode: str = "{}", more: str = "") -> LoadedFleet:
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
        f"transfer: {{backend: mooncake, protocol: tcp}}\nprefill: {prefill}\ndecode: {decode}\n{more}"
    )
    return parse_fleet(text.encode(), Path("f.yaml"))


def argument(plan: FleetPlan, unit: str, flag: str) -> str:
    argv = next(one.argv for one in plan.units if one.name == unit)
    return argv[argv.index(flag) + 1]


def test_engines_get_what_the_fleet_file_says_and_the_router_gets_the_engines() -> None:
    plan = make_plan(load("{attn_tp: 4, pp: 2, dp: 2, page_size: 32}", "{replicas: 2}", "router: {port: 31999}"))
    assert [unit.name for unit in plan.units] == ["prefill-0", "decode-0", "decode-1", "router"]
    assert [argument(plan, "prefill-0", flag) for flag in ("--tp", "--pp", "--dp", "--page-size")] == [
        "8",
        "2",
        "2",
        "32",
    ]
    prefill, *decode = [one.instance for one in plan.engines]
    argv = plan.router.argv
    at = argv.index("--prefill")
    assert argv[at + 1 : at + 3] == (prefill.url, str(prefill.ports["bootstrap"]))
    assert [argv[i + 1] for i, word in enumerate(argv) if word == "--decode"] == [one.url for one in decode]
    assert plan.url == "http://127.0.0.1:31999"


def test_connector_options_reach_both_sides_and_not_the_aggregate_engine() -> None:
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\nprefill: {}\n"
        "decode: {}\ntransfer: {options: {verify: full}}\nroles: {aggregate: {}}\n"
    )
    plan = make_plan(parse_fleet(text.encode(), Path("f.yaml")))
    assert argument(plan, "prefill-0", "--session") == argument(plan, "decode-0", "--session") == "verify=full"
    assert "--session" not in plan.of("aggregate")[0].unit.argv


def environments(plan: FleetPlan) -> dict[str, str | None]:
    return {unit.name: unit.env.get("PDCTL_TRANSFER_SECRET") for unit in plan.units}


def test_the_fleets_secret_goes_to_those_that_move_state_and_never_into_a_command_line() -> None:
    loaded = load(more="roles: {aggregate: {}}\n")
    plan = make_plan(loaded, secret=lambda: "hunter2")
    assert environments(plan) == {"prefill-0": "hunter2", "decode-0": "hunter2", "aggregate-0": None, "router": None}
    assert not any("hunter2" in word for unit in plan.units for word in unit.argv)
    changed, same = (
        make_plan(loaded, {u.name: u.ports for u in plan.units}, secret=lambda s=s: s) for s in ("o", "hunter2")
    )
    assert [unit.digest for unit in same.units] == [unit.digest for unit in plan.units]
    differ = [a.name for a, b in zip(plan.units, changed.units, strict=True) if a.digest != b.digest]
    assert differ == ["prefill-0", "decode-0"], "adopted with another secret, they could not speak to each other"


def test_a_secret_that_the_file_gives_counts_more_and_is_no_argument_either() -> None:
    given = load("{env: {PDCTL_TRANSFER_SECRET: mine}}")
    assert environments(make_plan(given, secret=lambda: "hunter2"))["prefill-0"] == "mine"
    text = (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\nprefill: {}\n"
        "decode: {}\ntransfer: {options: {verify: full, secret: ours}}\n"
    )
    plan = make_plan(parse_fleet(text.encode(), Path("f.yaml")), secret=lambda: "hunter2")
    assert environments(plan) == {"prefill-0": "ours", "decode-0": "ours", "router": None}
    assert not any("ours" in word or "secret" in word for unit in plan.units for word in unit.argv)


@pytest.mark.code("PD0043")
@pytest.mark.parametrize("args", ["[--session, secret=mine]", "[--session=secret=mine]", "[--sess, secret=]"])
def test_a_secret_in_the_args_is_refused_where_it_stands(args: str) -> None:
    with pytest.raises(InputError, match="everybody on the host can read") as caught:
        make_plan(load(prefill=f"{{args: {args}}}"))
    assert (caught.value.code, caught.value.where) == ("PD0043", "f.yaml:6")
    assert "mine" not in str(caught.value)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_engines_with_protocols_of_their_own_cost_no_secret(engine: str, tmp_path: Path) -> None:
    """None is drawn for them, and none lies in the environment of programs that do not know it."""
    (tmp_path / "config.json").write_text("{}")
    text = (
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: {tmp_path}}}\nengine: {engine}\n"
        "transfer: {backend: nixl, protocol: tcp}\nprefill: {}\ndecode: {}\n"
    )
    plan = make_plan(parse_fleet(text.encode(), Path("f.yaml")), secret=lambda: pytest.fail("it was drawn"))
    assert set(environments(plan).values()) == {None}


def test_ports_are_distinct_below_the_ephemeral_range_and_count_up_from_a_given_one() -> None:
    plan = make_plan(load("{replicas: 3, ports: {http: 31500}}", "{replicas: 3}"))
    given = [one.instance.ports["http"] for one in plan.of("prefill")]
    assert given == [31500, 31501, 31502]
    ports = [port for unit in plan.units for port in unit.ports.values()]
    assert len(ports) == len(set(ports))
    assert all(20000 <= port < 32768 for port in ports)


def test_a_restarted_fleet_keeps_its_ports_where_they_are_still_free() -> None:
    """Or the router, which names them, would have to be restarted for every engine that is repaired."""
    first = make_plan(load())
    recorded = {unit.name: dict(unit.ports) for unit in first.units}
    with socket.socket() as held:
        held.bind(("127.0.0.1", recorded["decode-0"]["http"]))
        held.listen()
        ports = {unit.name: dict(unit.ports) for unit in make_plan(load(), recorded).units}
    assert ports["prefill-0"] == recorded["prefill-0"]
    assert ports["decode-0"] != recorded["decode-0"]


def test_ports_that_an_earlier_file_gave_do_not_stick() -> None:
    """A failed `up` of a file with port 65535 must not leave the next one there."""
    recorded = {"prefill-0": {"http": 65535, "bootstrap": 65534}, "decode-0": {"http": 80}}
    plan = make_plan(load(), recorded)
    assert all(20000 <= port < 32768 for unit in plan.units for port in unit.ports.values())
    running = make_plan(load(), recorded, frozenset({"prefill-0"}))
    assert running.units[0].ports == recorded["prefill-0"]


def test_a_unit_that_still_runs_keeps_its_ports_so_that_it_can_be_adopted() -> None:
    first = make_plan(load())
    recorded = {unit.name: unit.ports for unit in first.units}
    assert [unit.digest for unit in make_plan(load(), recorded).units] == [unit.digest for unit in first.units]


def test_a_changed_variable_is_another_unit() -> None:
    recorded = {unit.name: unit.ports for unit in make_plan(load()).units}
    plain, changed = (make_plan(load(prefill), recorded) for prefill in ("{}", "{env: {A: 1}}"))
    assert plain.units[0].digest != changed.units[0].digest
    assert plain.units[1].digest == changed.units[1].digest


@pytest.mark.code("PD0016")
@pytest.mark.parametrize(
    ("prefill", "more", "where", "says"),
    [
        ("{cp: 2}", "", "f.yaml:6", "prefill.cp: the reference engine has no context parallelism"),
        ("{}", "roles: {encode: {}}", "f.yaml:8", "roles.encode: the reference engine has no role encode"),
    ],
)
def test_what_engine_or_launcher_cannot_do_is_told_at_its_line(prefill: str, more: str, where: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        make_plan(load(prefill, more=more))
    assert (caught.value.code, caught.value.where, caught.value.message) == ("PD0016", where, says)


def test_a_port_for_a_purpose_that_the_engine_does_not_have() -> None:
    with pytest.raises(InputError, match=r"decode.ports.bootstrap: a decode engine of reference has no port for"):
        make_plan(load(decode="{ports: {bootstrap: 31000}}"))


@pytest.mark.code("PD0010")
@pytest.mark.parametrize(
    "args", [["--dp-aware", "true"], ["--dp-aware=true"], ["--log-json", "1", "--policy", "random"]]
)
def test_a_switch_given_a_value_is_refused_before_the_router_refuses_it(args: list[str]) -> None:
    with pytest.raises(InputError, match=r"takes no value, found '(true|1)'") as caught:
        make_plan(load(more=f"router: {{args: {args}}}"))
    assert (caught.value.code, caught.value.where) == ("PD0010", "f.yaml:8")


@pytest.mark.code("PD0015")
@pytest.mark.parametrize("flag", ["--port", "--decode", "--pd-disaggregation", "--prefill=http://x"])
def test_a_router_flag_that_follows_from_the_file_is_not_taken_twice(flag: str) -> None:
    with pytest.raises(InputError, match="is set by pdctl") as caught:
        make_plan(load(more=f"router: {{args: [--policy, random, {flag}]}}"))
    assert (caught.value.code, caught.value.where) == ("PD0015", "f.yaml:8")


def test_switches_and_flags_with_values_pass() -> None:
    make_plan(load(more="router: {args: [--dp-aware, --policy, random, --retry-max-retries, 1]}"))


@pytest.mark.parametrize("kind", ROUTERS.values(), ids=ROUTERS)
def test_the_operators_flags_come_last_so_that_they_win(kind: object) -> None:
    argv = router_argv(
        kind,  # type: ignore[arg-type]
        [Backend("http://p", 8998)],
        [Backend("http://d")],
        ("127.0.0.1", 1),
        2,
        ["--health-check-interval-secs", "9"],
    )
    assert argv[-2:] == ("--health-check-interval-secs", "9")


@pytest.mark.code("PD3118")
@pytest.mark.parametrize(
    ("kind", "hint"), [("dynamo", "it starts smg, sglang-router and vllm-router"), ("smgg", "did you mean smg?")]
)
def test_a_router_that_pdctl_does_not_start_is_refused_before_anything_starts(kind: str, hint: str) -> None:
    with pytest.raises(InputError, match=f"pdctl does not start {kind}") as caught:
        make_plan(load(more=f"router: {{kind: {kind}}}"))
    assert (caught.value.code, caught.value.where) == ("PD3118", "f.yaml:8")
    assert str(caught.value.hint).startswith(hint)
