"""What pdctl knows of the routers, held against the routers that are installed."""

import argparse
import importlib

import pytest

from pdctl.routers import ROUTERS, Backend, router_argv


def parser_of(package: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    importlib.import_module(f"{package}.router_args").RouterArgs.add_cli_args(parser, use_router_prefix=False)
    return parser


@pytest.mark.parametrize("name", ["smg", "sglang-router"])
def test_the_installed_router_takes_the_command_line(name: str) -> None:
    kind = ROUTERS[name]
    argv = router_argv(kind, [Backend("http://p:1", 8998)], [Backend("http://d:2")], ("127.0.0.1", 3), 4, [])
    given = parser_of(kind.package).parse_args(argv[len(kind.launch) :])
    assert given.pd_disaggregation
    assert given.prefill == [["http://p:1", "8998"]]
    assert given.decode == [["http://d:2"]]
    assert (given.host, given.port, given.prometheus_port) == ("127.0.0.1", 3, 4)
    assert given.health_check_interval_secs == 1
