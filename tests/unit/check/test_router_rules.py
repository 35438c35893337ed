"""What a router says to engines, and what it is told of them: a fault of each kind, and its healthy twin."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.routers import CONTRACTS, contract_of
from pdctl.routers.contracts import NEEDS, SPEECHES
from pdctl.routers.listed import listed
from tests.unit.derive.models import QWEN3 as CONFIG

OURS = ("PD0015", "PD1039", "PD1040", "PD1048", "PD1049", "PD3102")


def place(host: str, http: int, bootstrap: int | None = None, **more: Any) -> dict[str, Any]:
    ports = {"http": http, **({"bootstrap": bootstrap} if bootstrap else {})}
    return {"hosts": [host], "ports": ports, **more}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The exit status, the findings of these rules by code and severity, and the whole report."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))

    def run(
        router: dict[str, Any] | None = None, *, engine: str = "sglang", backend: str = "mooncake",
        prefill: Any = None, decode: Any = None, **more: Any,
    ) -> tuple[int, list[tuple[str, str]], dict[str, Any]]:  # fmt: skip
        fleet = {
            "schema": "pdctl.fleet/v1", "name": "f", "model": {"path": "model"}, "engine": engine,
            "transfer": {"backend": backend}, "prefill": prefill or {}, "decode": decode or {},
            **({"router": router} if router is not None else {}), **more,
        }  # fmt: skip
        (tmp_path / "fleet.yaml").write_text(json.dumps(fleet, indent=1))
        status = main(["check", "fleet.yaml", "-o", "json"])
        out = capsys.readouterr()
        assert out.out, out.err
        report = json.loads(out.out)
        found = [(one["code"], one["severity"]) for one in report["findings"] if one["code"] in OURS]
        return status, found, report

    return run


# ---- PD1048: what is said to whom ----

OF_ENGINE = {"sglang": ("mooncake", None), "nixl": ("nixl", None), "mooncake": ("mooncake", None)}


@pytest.mark.code("PD1048")
@pytest.mark.parametrize(
    ("kind", "engine", "backend", "args"),
    [
        ("smg", "vllm", "nixl", []),
        ("sglang-router", "vllm", "mooncake", []),
        ("mini_lb", "vllm", "nixl", []),
        ("vllm-router", "sglang", "nixl", []),
        ("vllm-router", "vllm", "nixl", ["--kv-connector", "mooncake"]),
        ("toy_proxy_server.py", "vllm", "mooncake", []),
        ("toy-proxy-server", "sglang", "nixl", []),
        ("mooncake_connector_proxy", "vllm", "nixl", []),
        ("load_balance_proxy_layerwise_server_example.py", "vllm", "nixl", []),
        ("llm-d", "sglang", "nixl", []),
        ("llm-d", "vllm", "nixl", ["--kv-connector", "sglang"]),
        ("llm-d", "vllm", "mooncake", []),
        ("aibrix", "vllm", "mooncake", []),
        ("production-stack", "vllm", "nixl", ["--routing-logic", "disaggregated_prefill"]),
    ],
)
def test_a_router_of_another_kind_is_refused(judged: Any, kind: str, engine: str, backend: str, args: Any) -> None:
    """Everybody's health checks pass, requests are answered, and no page moves."""
    status, found, report = judged({"kind": kind, "args": args}, engine=engine, backend=backend)
    assert (status, found) == (3, [("PD1048", "error")])
    (one,) = (one for one in report["findings"] if one["code"] == "PD1048")
    assert one["evidence"][0] == {"source": one["evidence"][0]["source"], "text": f"router.kind: {kind}"}
    assert one["evidence"][-1]["text"] == "where it speaks so"


@pytest.mark.parametrize(
    ("kind", "engine", "backend", "args"),
    [
        ("smg", "sglang", "nixl", []),
        ("sglang-router", "sglang", "mori", []),
        ("mini_lb", "sglang", "mooncake", []),
        ("vllm-router", "vllm", "nixl", []),
        ("vllm-router", "vllm", "mooncake", []),
        ("toy_proxy_server", "vllm", "nixl", []),
        ("mooncake_connector_proxy.py", "vllm", "mooncake", []),
        ("llm-d", "vllm", "nixl", []),
        ("llm-d", "sglang", "nixl", ["--kv-connector=sglang"]),
        ("aibrix", "vllm", "nixl", []),
        ("dynamo", "vllm", "nixl", []),
        ("dynamo", "sglang", "nixl", []),
        ("production-stack", "vllm", "nixl", ["--routing-logic", "disaggregated_prefill_orchestrated"]),
    ],
)
def test_a_router_that_speaks_as_the_connector_expects_is_held(
    judged: Any, kind: str, engine: str, backend: str, args: Any
) -> None:
    status, found, report = judged({"kind": kind, "args": args}, engine=engine, backend=backend)
    assert (status, found) == (0, [])
    assert "router" in {one["rule"] for one in report["held"]}


@pytest.mark.parametrize(
    ("router", "engine", "backend", "says"),
    [
        ({"kind": "nginx"}, "sglang", "nixl", "what nginx says to engines is not known"),
        ({"kind": "smgg"}, "sglang", "nixl", "did you mean smg?"),
        ({"kind": "dynamo"}, "vllm", "mooncake", "not known to pdctl"),
        ({"kind": "production-stack"}, "vllm", "nixl", "--routing-logic is not given"),
    ],
)
def test_what_is_not_known_is_said_and_refused_to_nobody(
    judged: Any, router: Any, engine: str, backend: str, says: str
) -> None:
    status, found, report = judged(router, engine=engine, backend=backend)
    assert (status, found) == (0, [])
    assert says in " ".join(one["reason"] for one in report["skipped"] if one["rule"] == "router")


def test_a_demo_of_which_newer_copies_hand_over_is_doubted(judged: Any) -> None:
    assert judged({"kind": "disagg_proxy_demo.py"}, engine="vllm", backend="nixl")[:2] == (0, [("PD1048", "warning")])


def test_engines_over_grpc_are_another_matter(judged: Any) -> None:
    """Smg serves vLLM so, in a way that was not read."""
    pools = {"prefill": {"args": ["--grpc"]}, "decode": {"args": ["--grpc"]}}
    assert judged({"kind": "smg"}, engine="vllm", backend="nixl", **pools)[:2] == (0, [])


@pytest.mark.parametrize(("engine", "kind"), [("sglang", "smg"), ("vllm", "vllm-router")])
def test_a_router_that_is_not_named_is_the_engines_own(judged: Any, engine: str, kind: str) -> None:
    status, found, report = judged(engine=engine)
    assert (status, found) == (0, [])
    assert any(one["rule"] == "router" for one in report["held"]), kind


def test_every_way_to_speak_that_is_waited_for_is_one_that_some_router_speaks() -> None:
    spoken = {
        way for one in CONTRACTS for way in (*one.speaks, *(one.chosen.means.values() if one.chosen else ()))
    }  # fmt: skip
    assert {*NEEDS.values(), "bootstrap"} <= spoken <= set(SPEECHES)
    assert all(contract_of(one.name) is one and one.source for one in CONTRACTS)


# ---- PD1039: names ----


@pytest.mark.code("PD1039")
@pytest.mark.parametrize(
    ("engine", "kind", "pools", "severity"),
    [
        ("sglang", "smg", {"decode": {"args": ["--served-model-name", "other"]}}, "error"),
        ("sglang", "sglang-router", {"decode": {"served_name": "other"}}, "warning"),
        ("vllm", "vllm-router", {"decode": {"served_name": "other"}}, "error"),
        ("vllm", "vllm-router", {"decode": {"args": ["--served-model-name", "b", "c"]}}, "error"),
        ("sglang", "dynamo", {"prefill": {"served_name": "a"}, "decode": {"served_name": "b"}}, "error"),
        (
            "vllm",
            "toy-proxy-server",
            {"prefill": {"served_name": "a"}, "decode": {"served_name": "a"}, "model": {"path": "model", "name": "m"}},
            "error",
        ),
    ],
)
def test_sides_that_answer_to_no_common_name(judged: Any, engine: str, kind: str, pools: Any, severity: str) -> None:
    status, found, _ = judged({"kind": kind}, engine=engine, backend="nixl", **pools)
    assert (status, found) == (3 if severity == "error" else 0, [("PD1039", severity)])


@pytest.mark.parametrize(
    "pools",
    [
        {"prefill": {"served_name": "m"}, "decode": {"args": ["--served-model-name", "m"]}},
        {"prefill": {"served_name": "b"}, "decode": {"args": ["--served-model-name", "a", "b"]}},
        {"prefill": {"served_name": "n"}, "model": {"path": "model", "name": "n"}},
    ],
)
def test_one_common_name_is_enough(judged: Any, pools: Any) -> None:
    assert judged(engine="vllm", backend="nixl", **pools)[:2] == (0, [])


# ---- PD1040: the bootstrap port ----


@pytest.mark.code("PD1040", "PD0015")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sglang-router", ["--prefill", "http://p0:30000", "8998", "--decode", "http://d0:30001"]),
        ("sglang-router", ["--prefill", "http://p0:30000", "--decode", "http://d0:30001"]),
        ("mini_lb", ["--prefill", "http://p0:30000,http://p1:30000", "--prefill-bootstrap-ports", "8998,6657",
                     "--decode", "http://d0:30001"]),
    ],
)  # fmt: skip
def test_a_router_that_tells_another_bootstrap_port(judged: Any, kind: str, words: list[str]) -> None:
    """Said in so many words, or by leaving it out: then it is the usual one."""
    pools = {"prefill": place("p0", 30000, 6657), "decode": place("d0", 30001)}
    status, found, report = judged({"kind": kind, "args": words}, **pools)
    assert status == 3
    assert ("PD1040", "error") in found
    messages = [one["message"] for one in report["findings"] if one["code"] == "PD1040"]
    assert messages == ["the router tells 8998, prefill-0 listens on 6657"]
    assert (("PD0015", "warning") in found) == (kind == "sglang-router"), "`up` starts that one, and lists them itself"


def test_llm_d_tells_one_port_for_all(judged: Any) -> None:
    router = {"kind": "llm-d", "args": ["--kv-connector", "sglang"]}
    pools = {"prefill": place("p0", 30000, 6657), "decode": place("d0", 30001)}
    assert judged(router, **pools)[1] == [("PD1040", "error")]
    assert judged({**router, "env": {"SGLANG_BOOTSTRAP_PORT": "6657"}}, **pools)[:2] == (0, [])


def test_the_port_that_prefill_listens_on_is_held(judged: Any) -> None:
    words = ["--prefill", "http://p0:30000", "6657", "--decode", "http://d0:30001"]
    pools = {"prefill": place("p0", 30000, 6657), "decode": place("d0", 30001)}
    status, found, report = judged({"kind": "mini_lb", "args": words}, **pools)
    assert (status, found) == (0, [])
    assert {"bootstrap", "workers"} <= {one["rule"] for one in report["held"]}


# ---- PD1049: the list of engines ----

TWO = {"prefill": place("p0", 8100, replicas=2), "decode": place("d0", 8200)}


def toy(prefill: str, decode: str) -> list[str]:
    words: list[str] = []
    for flag, pairs in (("prefiller", prefill), ("decoder", decode)):
        hosts, ports = zip(*(pair.split(":") for pair in pairs.split()), strict=True)
        words += [f"--{flag}-hosts", *hosts, f"--{flag}-ports", *ports]
    return words


@pytest.mark.code("PD1049")
@pytest.mark.parametrize(
    ("words", "severity", "says"),
    [
        (toy("p0:8100", "d0:8200"), "warning", "1 of 2 prefill engines are in no list of the router: prefill-1"),
        (toy("p0:8100 p0:8101 p0:8101", "d0:8200"), "warning", "p0:8101 is listed 2 times as prefill"),
        (toy("p0:8100 p0:8102", "d0:8200"), "error", "p0:8102: the fleet's prefill on p0 has port 8100, 8101"),
        (toy("p0:8100 p0:8101", "p0:8101"), "error", "p0:8101 is listed as decode, and is prefill-1"),
        (toy("p0:8100 p0:8101", "x0:1"), "error", "1 of 1 decode engines are in no list of the router: decode-0"),
        (
            ["--prefiller-hosts", "p0", "p0", "--prefiller-ports", "8100"],
            "error",
            "2 hosts, 1 ports: no address",
        ),
        (toy("p0:8100 p0:8101", "0.0.0.0:8200"), "warning", "0.0.0.0:8200: an address to listen on, not one to reach"),
    ],
)
def test_a_list_that_is_not_the_fleets(judged: Any, words: list[str], severity: str, says: str) -> None:
    router = {"kind": "toy_proxy_server", "args": words}
    _, found, report = judged(router, engine="vllm", backend="nixl", **TWO)
    assert (says, severity) in [(one["message"][: len(says)], one["severity"]) for one in report["findings"]], found


@pytest.mark.parametrize(
    "words",
    [
        toy("p0:8100 p0:8101", "d0:8200"),
        ["--prefiller-host", "$P", "$P", "--prefiller-port", "8100", "8101", "--decoder-hosts", "d0", "--decoder-ports",
         "8200"],
    ],
)  # fmt: skip
def test_the_fleets_own_list_is_right_and_placeholders_are_nobodys_fault(judged: Any, words: list[str]) -> None:
    router = {"kind": "toy_proxy_server", "args": words}
    assert [
        code for code, severity in judged(router, engine="vllm", backend="nixl", **TWO)[1] if severity == "error"
    ] == []


def test_a_pool_that_leaves_its_ports_to_pdctl_is_listed_by_nobody(judged: Any) -> None:
    router = {"kind": "toy_proxy_server", "args": toy("p0:1", "d0:2")}
    assert judged(router, engine="vllm", backend="nixl")[:2] == (0, [])


@pytest.mark.parametrize(
    ("kind", "words", "found"),
    [
        ("smg", ["--prefill", "http://a:1", "9", "--prefill", "http://[::1]:2", "--decode", "grpc://b:3"],
         [("prefill", "a", 1, 9), ("prefill", "::1", 2, None), ("decode", "b", 3, None)]),
        ("smg", ["--policy", "random", "--decode", "http://a:1,http://b:2"], [("decode", None, None, None)]),
        ("mini-lb", ["--decode", "http://a:1,http://b:2"], [("decode", "a", 1, None), ("decode", "b", 2, None)]),
        ("disagg-proxy-demo", ["--model", "m", "--prefill", "a:1", "b:2", "--decode", "c:3"],
         [("prefill", "a", 1, None), ("prefill", "b", 2, None), ("decode", "c", 3, None)]),
        ("dynamo", ["--prefill", "x"], []),
        ("smg", ["--prefill", "http://a:notaport"], [("prefill", None, None, None)]),
    ],
)  # fmt: skip
def test_each_form_of_a_list_is_read(kind: str, words: list[str], found: list[Any]) -> None:
    contract = contract_of(kind)
    assert contract is not None
    assert [(one.role, one.host, one.port, one.bootstrap) for one in listed(contract, words)] == found


# ---- what check gives as a finding, up refuses ----


@pytest.mark.code("PD3102")
@pytest.mark.parametrize("form", ["table", "short", "json", "junit", "sarif"])
def test_two_truths_are_a_finding_in_every_form(
    form: str, judged: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = {"prefill": {"attn_tp": 8, "args": ["--tp", "4"]}, "decode": {"attn_tp": 4}}
    assert judged(**pools)[:2] == (3, [("PD3102", "error")])
    assert main(["check", "fleet.yaml", "-o", form]) == 3
    out = capsys.readouterr().out
    assert "PD3102" in out
    assert form == "short" or "fleet.yaml" in out
    assert main(["up", "--plan", "fleet.yaml"]) == 2
    assert "PD3102" in capsys.readouterr().err
