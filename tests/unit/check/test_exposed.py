"""What listens beyond its host without a key is said before anything starts, at the line that makes it so."""

import json
from pathlib import Path

import pytest

from pdctl.check.exposed import exposed, is_loopback
from pdctl.cli.app import main
from pdctl.fleet import parse_fleet


def codes(
    prefill: str = "{}", decode: str = "{}", router: str = "{}", backend: str = "nixl", engine: str = "vllm"
) -> list[tuple[str, str, str]]:
    text = (
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: {engine}\n"
        f"transfer: {{backend: {backend}}}\nprefill: {prefill}\ndecode: {decode}\nrouter: {router}\n"
    )
    found = exposed(parse_fleet(text.encode(), Path("f.yaml")))
    return [(one.code, one.subject, one.evidence[0].source) for one in found]


def test_a_fleet_on_loopback_is_closed() -> None:
    assert codes() == []
    assert codes("{hosts: [localhost, 127.0.0.2]}", "{hosts: ['::1']}", "{host: '::1'}") == []


@pytest.mark.code("PD2016")
@pytest.mark.parametrize("engine", ["reference", "sglang", "vllm"])
def test_mooncake_is_open_on_loopback_too(engine: str) -> None:
    assert codes(backend="mooncake", engine=engine) == [("PD2016", "f", "f.yaml:5")]


@pytest.mark.code("PD2017")
@pytest.mark.parametrize(
    ("engine", "key", "ports"),
    [
        ("vllm", False, "http, side_channel, bootstrap"),
        ("vllm", True, "side_channel, bootstrap"),
        ("sglang", True, "bootstrap"),
        ("reference", False, "http"),
        ("reference", True, None),
    ],
)
def test_engines_on_other_hosts(engine: str, key: bool, ports: str | None) -> None:
    text = (
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: {engine}\ntransfer: {{backend: nixl}}\n"
        f"prefill: {{}}\ndecode: {{hosts: [d0]{', api_key_env: K' if key else ''}}}\n"
    )
    found = list(exposed(parse_fleet(text.encode(), Path("f.yaml"))))
    assert [one.params["ports"] for one in found] == ([ports] if ports else [])
    assert all((one.code, one.subject) == ("PD2017", "decode") for one in found)


@pytest.mark.code("PD2018", "PD2019")
@pytest.mark.parametrize(
    ("router", "decode", "found"),
    [
        ("{host: 0.0.0.0, kind: smg}", "{}", ["PD2018"]),
        ("{host: 0.0.0.0, kind: smg, api_key_env: K}", "{}", []),
        ("{host: '::', kind: smg}", "{api_key_env: K}", []),
        ("{host: 0.0.0.0, kind: dynamo}", "{}", []),
        ("{host: 10.0.0.1, kind: sglang-router}", "{}", ["PD2018"]),
        ("{host: 10.0.0.1, kind: vllm-router}", "{}", ["PD2018", "PD2019"]),
        ("{host: 10.0.0.1, kind: vllm-router}", "{api_key_env: K}", ["PD2018", "PD2019"]),
        ("{host: 127.0.0.1, kind: vllm-router}", "{}", []),
    ],
)
def test_routers(router: str, decode: str, found: list[str]) -> None:
    assert codes("{}", decode, router) == [(code, "router", "f.yaml:8") for code in found]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node-7", "user@node-7", "fe80::1"])
def test_what_is_not_surely_loopback_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.code("PD2016")
def test_check_says_it_and_fails_for_nothing_that_the_file_cannot_cure(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[3] / "examples/tiny-hybrid.yaml")
    assert main(["check", example, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["code"], one["severity"]) for one in found] == [("PD2016", "info")]
    assert main(["check", example, "--fail-on", "warning"]) == 0


@pytest.mark.code("PD2016")
def test_preflight_warns(capsys: pytest.CaptureFixture[str]) -> None:
    """The hosts' networks are what it judges."""
    example = str(Path(__file__).parents[3] / "examples/tiny-hybrid.yaml")
    main(["preflight", example, "-o", "json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["severity"] for one in found if one["code"] == "PD2016"] == ["warning"]
