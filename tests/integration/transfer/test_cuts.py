"""Control connections that break, in every state of a request: a cut costs no request, no slot and no byte."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from tests.integration.transfer.conversation import Conversation, gauges, until, ways
from tests.integration.transfer.paced import PacedFabric
from tests.integration.transfer.proxy import ADVERTISED, Proxy, Way, proxied
from tests.integration.transfer.sockets import Break, break_connections
from tests.unit.transfer_session.world import FAST, World, manifest

TPS = {"direct": (1, 1), "packed": (1, 2), "staged": (2, 1)}
OPTIONS = replace(
    FAST, bootstrap_s=15, waiting_s=15, transfer_s=15, silent_s=5, staging_bytes=1 << 17, chunk_bytes=1 << 15
)
PAGES = 12


@contextmanager
def world(way: str, rate: float) -> Iterator[World]:
    """A pair that sends its pages this way, at so many bytes a second once it has served a first request."""

    class Fabric(PacedFabric):
        pass

    src, dst = (manifest(role, tp, scale=16) for role, tp in zip(("prefill", "decode"), TPS[way], strict=True))
    with World(src, dst, OPTIONS, fabric=Fabric) as made:
        Conversation(made, PAGES).run().confirmed()
        expected = {"direct", "packed"} if way == "direct" else {way}  # scattered ids may be gathered
        assert ways(made, "kv") <= expected
        Fabric.rate = rate
        yield made


def cut(made: World, how: Break) -> None:
    """All control connections, those to the registry too."""
    ports = {peer.port for peer, _ in made.prefill.values()} | {made.registry.port}
    assert break_connections(how, ports) > 0


@pytest.mark.parametrize("how", ["reset", "half-close"])
@pytest.mark.parametrize("way", TPS)
@pytest.mark.parametrize("state", ["bootstrapping", "waiting", "transferring"])
def test_a_cut_costs_no_request(state: str, way: str, how: Break) -> None:
    """Fails if what was under way, lent or asked over a link ends with the link."""
    with world(way, 5e5 if state == "transferring" else 1e9) as made:
        before = gauges(made)
        room = Conversation(made, PAGES)
        room.ask()
        if state == "bootstrapping":
            time.sleep(0.1)
            room.reach("bootstrapping")
            cut(made, how)
        room.expect()
        if state == "waiting":
            room.reach("waiting")
            cut(made, how)
        room.send()
        if state == "transferring":
            room.reach("transferring")
            time.sleep(0.1)
            room.reach("transferring")
            cut(made, how)
        room.confirmed()
        until(lambda: gauges(made) == before, 5.0, f"{gauges(made)} is not {before}")
        room.untouched()


@pytest.mark.parametrize("way", TPS)
def test_cuts_in_a_row_cost_no_request(way: str) -> None:
    """Fails if a second cut meets what the first has left half way."""
    with world(way, 3e5) as made:
        before = gauges(made)
        room = Conversation(made, PAGES).run()
        room.reach("transferring")
        for _ in range(4):
            time.sleep(0.15)
            if all(handle.state == "transferring" for handle in room.handles):
                cut(made, "reset")
        room.confirmed()
        until(lambda: gauges(made) == before, 5.0, f"{gauges(made)} is not {before}")
        room.untouched()


@pytest.mark.parametrize("towards", ["to decode", "to prefill"])
@pytest.mark.parametrize("after", [1, 200, 3000])
def test_a_cut_in_the_handshake_costs_no_request(towards: Way, after: int) -> None:
    """At this byte of the first connection; the next one is whole."""
    with world_behind_proxies() as (made, (proxy,)):
        proxy.cut_first(towards, after)
        Conversation(made).run().confirmed()
        assert proxy.connections > 1


@pytest.mark.parametrize("towards", ["to decode", "to prefill"])
def test_a_connection_that_is_dark_one_way_is_replaced(towards: Way) -> None:
    """It stands for as long as the kernel likes; later requests must not wait for that."""
    with world_behind_proxies() as (made, (proxy,)):
        Conversation(made).run().confirmed()
        caught = Conversation(made)
        caught.ask()
        caught.expect()
        caught.reach("waiting")
        proxy.darken(towards)
        time.sleep(made.options.silent_s + 0.2)
        caught.send()
        for _ in range(3):
            Conversation(made).run().confirmed(5.0)
        assert proxy.connections > 1
        for handle in caught.handles:
            assert handle.wait(10.0) in {"confirmed", "failed"}
            assert handle.wait_reusable(5.0)


@contextmanager
def world_behind_proxies() -> Iterator[tuple[World, list[Proxy]]]:
    """A pair of which decode reaches each prefill rank through a proxy."""
    options = replace(OPTIONS, advertise=ADVERTISED, silent_s=1.0)
    with (
        World(manifest("prefill", 1), manifest("decode", 1), options, fabric=PacedFabric) as made,
        proxied(*(peer.port for peer, _ in made.prefill.values())) as proxies,
    ):
        yield made, proxies
