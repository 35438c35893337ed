"""Ranks are told apart by rank; a route names every rank or what is missing."""

import pytest

from pdctl_transfer.errors import FabricError
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.session import Rank, Registry
from pdctl_transfer.session.registry import Table
from pdctl_transfer.session.wire.messages import Register
from tests.unit.transfer_session.world import manifest


def record(rank: Rank, incarnation: str = "a", tp: int = 2, pp: int = 1, dp: int = 1, port: int = 1) -> Register:
    return Register(rank, "host", port, incarnation, encode_manifest(manifest("prefill", tp, pp, dp)))


def test_a_rank_that_registers_twice_is_one_rank() -> None:
    table = Table()
    for incarnation in ("a", "b"):
        table.register(record(Rank(0, 0), incarnation), incarnation)
    assert [served.incarnation for served in table.ranks()] == ["b"]
    assert "pp0/tp1" in table.route(1, 5).missing


def test_a_connection_that_ends_takes_only_what_it_still_vouches_for() -> None:
    table = Table()
    table.register(record(Rank(0, 0), "old"), "first")
    table.register(record(Rank(0, 0), "new"), "second")
    table.drop("first")
    assert [served.incarnation for served in table.ranks()] == ["new"]
    table.drop("second")
    assert table.route(1, 5).missing == "no prefill rank has registered"


def test_a_route_is_complete_or_says_what_is_missing() -> None:
    table = Table()
    for pp in range(2):
        for tp in range(2):
            assert table.route(1, 5).missing
            table.register(record(Rank(pp, tp), pp=2), "all")
    route = table.route(7, 5)
    assert (route.missing, route.serial, len(route.ranks)) == ("", 7, 4)


def test_a_room_lives_in_the_dp_group_that_opened_it() -> None:
    table = Table()
    for dp in range(2):
        table.register(record(Rank(0, 0, dp), tp=1, dp=2, port=dp), "all")
    assert "room 5" in table.route(1, 5).missing
    table.room_at(5, 1)
    assert [served.port for served in table.route(1, 5).ranks] == [1]


def test_ranks_of_two_layouts_are_not_mixed() -> None:
    table = Table()
    table.register(record(Rank(0, 0), tp=2), "all")
    other = encode_manifest(manifest("prefill", 2, layers=4))
    table.register(Register(Rank(0, 1), "host", 1, "b", other), "all")
    assert "different manifests" in table.route(1, 5).missing


@pytest.mark.code("PD4015")
def test_a_taken_port_is_named() -> None:
    registry = Registry()
    try:
        with pytest.raises(FabricError, match=str(registry.port)) as caught:
            Registry(port=registry.port)
        assert caught.value.code == "PD4015"
    finally:
        registry.close()
