"""Over real connections: whatever a registry and its ranks go through, decode finds whoever lives and has the room."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank, Registry, registry
from pdctl_transfer.session.drive import client
from pdctl_transfer.session.drive.client import Registration, Routes
from pdctl_transfer.session.drive.listener import Listener
from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.machine import table
from pdctl_transfer.session.wire.messages import AnyMessage, Beat, Lookup, Register, Route
from tests.unit.transfer_session.world import FAST, Buffers, World, indices, manifest, np

HASTY = replace(FAST, bootstrap_s=6.0, waiting_s=6.0)


def until(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether it comes true in time."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def incarnations(world: World) -> list[str]:
    return [served.incarnation for served in world.registry.ranks()]


@contextmanager
def another_prefill(world: World) -> Iterator[PrefillPeer]:
    """A second process, as it were, that registers a rank which is registered already."""
    rank = Rank(0, 0)
    buffers = Buffers(manifest("prefill", 1), rank, 8)
    with closing(MemoryFabric()) as fabric:
        peer = PrefillPeer(
            buffers.manifest, rank, buffers.regions(), fabric, registry=world.at, options=replace(HASTY, bootstrap_s=1)
        )
        try:
            yield peer
        finally:
            peer.close()


def new_decode_is_served(world: World, dp: int = 0) -> bool:
    """A decode engine that starts now, and knows nothing, gets the state of a request."""
    buffers = Buffers(manifest("decode", 1), Rank(0, 0), 64)
    rng = np.random.default_rng(0)
    here, there, room = indices(rng, 64, 3), indices(rng, 64, 3), time.monotonic_ns()
    prefill, held = world.prefill[Rank(0, 0, dp)]
    held.fill(room, here)
    with closing(MemoryFabric()) as fabric:
        for array in buffers.arrays:
            fabric.register(array.ctypes.data, array.nbytes)
        decode = DecodePeer(buffers.manifest, Rank(0, 0), buffers.regions(), fabric, HASTY)
        try:
            sender = prefill.open(room)
            sender.send(here, b"")
            receiver = decode.open(room, world.at, there)
            return receiver.wait(10) == sender.wait(10) == "confirmed" and not buffers.wrong(room, there)
        finally:
            decode.close()


@pytest.mark.code("PD4026")
def test_a_second_registration_takes_nothing_from_who_lives() -> None:
    """Not while it is there, not after it has left; its own requests say what is wrong with it."""
    with World(manifest("prefill", 1), manifest("decode", 1), HASTY) as world:
        assert new_decode_is_served(world)
        before = incarnations(world)
        with another_prefill(world) as other:
            stray = other.open(1)
            assert new_decode_is_served(world)
            assert stray.wait(10) == "failed"
            assert stray.failure is not None
            assert (stray.failure.code, stray.failure.side) == ("PD4026", "prefill")
            assert str(world.prefill[Rank(0, 0)][0].port) in stray.failure.cause
        assert incarnations(world) == before
        assert new_decode_is_served(world)


def test_whoever_was_kept_aside_takes_the_place_when_it_is_free() -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), HASTY) as world:
        ((first, _),) = world.prefill.values()
        assert until(lambda: len(incarnations(world)) == 1)
        with another_prefill(world) as other:
            assert until(lambda: other._driver._registration.fault is not None)
            first.close()
            assert until(lambda: incarnations(world) == [other._driver.me.incarnation])
            assert until(lambda: other._driver._registration.fault is None)


def test_a_process_that_thaws_late_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was replaced while it was frozen; neither its coming back nor its end is to lose the new one."""
    monkeypatch.setattr(table, "TTL_S", 1.5)
    monkeypatch.setattr(registry, "TICK_S", 0.1)
    monkeypatch.setattr(table, "TICK_S", 0.1)
    with World(manifest("prefill", 1), manifest("decode", 1), HASTY) as world:
        ((old, _),) = world.prefill.values()
        assert until(lambda: incarnations(world) == [old._driver.me.incarnation])
        thaw = threading.Event()
        old._driver.loop.call(thaw.wait, 20)
        assert until(lambda: incarnations(world) == [])
        with another_prefill(world) as new:
            assert until(lambda: incarnations(world) == [new._driver.me.incarnation])
            thaw.set()
            assert until(lambda: old._driver._registration.fault is not None)
            assert incarnations(world) == [new._driver.me.incarnation]
            old.close()
            assert not until(lambda: incarnations(world) != [new._driver.me.incarnation], 1.0)


def test_ranks_come_back_to_a_registry_that_restarts() -> None:
    with World(manifest("prefill", 1), manifest("decode", 1), HASTY) as world:
        assert new_decode_is_served(world)
        world.registry.close()
        world.registry = Registry(port=world.at[1])
        world.stack.callback(world.registry.close)
        assert new_decode_is_served(world)


def test_a_registry_that_knows_a_rank_no_more_is_told_again() -> None:
    """Its connections stand, so only the beats can say that it has forgotten; rooms come back with the rank."""
    with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
        assert until(lambda: len(incarnations(world)) == 2)
        sender = world.prefill[Rank(0, 0, 1)][0].open(5)
        at = world.registry
        at._loop.ask(lambda: setattr(at, "_table", table.Table()))
        assert until(lambda: len(incarnations(world)) == 2)
        assert until(lambda: not at._loop.ask(lambda: at._table.route(1, 5)).missing)
        sender.abort("enough")


def test_a_room_opened_while_the_registry_was_away_is_found() -> None:
    with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
        senders, receivers, wrong = world.transfer(dp=1)
        assert {handle.wait(10) for handle in senders + receivers} == {"confirmed"}
        world.registry.close()
        assert until(lambda: all(peer._driver._registration.cause for peer, _ in world.prefill.values()))
        senders, receivers, wrong = world.transfer(dp=1)
        world.registry = Registry(port=world.at[1])
        world.stack.callback(world.registry.close)
        assert {handle.wait(10) for handle in senders + receivers} == {"confirmed"}
        assert wrong() == []


def test_a_room_opened_before_the_first_connection_is_found() -> None:
    """Ten of ten first requests, each right after its peers were made."""
    ends = []
    for turn in range(10):
        with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
            senders, receivers, _ = world.transfer(dp=turn % 2)
            ends += [handle.wait(10) for handle in senders + receivers]
    assert ends == ["confirmed"] * 20


@pytest.mark.parametrize("first", [0, 1])
def test_a_room_number_is_used_again_by_another_group(first: int) -> None:
    """Decode asks first, so the registry must not send it to the group that had the number before."""
    with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
        ((decode, received),) = world.decode.values()
        rng = np.random.default_rng(0)
        for dp in (first, 1 - first):
            here, there = indices(rng, 64, 5), indices(rng, 64, 5)
            prefill, held = world.prefill[Rank(0, 0, dp)]
            held.fill(7, here)
            asked = decode.open(7, world.at, there)
            assert until(lambda asked=asked: asked.state != "bootstrapping" or time.monotonic() > end(asked))
            sender = prefill.open(7)
            sender.send(here, b"")
            assert (asked.wait(10), sender.wait(10)) == ("confirmed", "confirmed")
            assert received.wrong(7, there) == []


def end(handle: Any) -> float:
    """Time enough for a few lookups, so that a wrong answer would have been believed."""
    began: float = handle.life.reached["bootstrapping"]
    return began + 0.3


def test_who_asks_for_a_room_that_failed_hears_why() -> None:
    """Also where prefill gave it up before decode asked for it, in the group that had it."""
    with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
        prefill, _ = world.prefill[Rank(0, 0, 1)]
        ((decode, _),) = world.decode.values()
        assert until(lambda: len(incarnations(world)) == 2)
        prefill.open(9).abort("no place")
        receiver = decode.open(9, world.at, indices(np.random.default_rng(0), 64, 1))
        assert receiver.wait(5) == "failed"
        assert receiver.failure is not None
        assert (receiver.failure.code, "no place" in receiver.failure.cause) == ("PD4033", True)


# The connection itself.


class Relay:
    """Stands between clients and a registry; `dark` connections stay open and carry nothing more."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._dark: list[threading.Event] = []
        self._socks: list[socket.socket] = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            dark = threading.Event()
            self._dark.append(dark)
            self._socks += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(a, b, dark), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, dark: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                if dark.is_set():
                    return
                sink.sendall(data)
        except OSError:
            pass

    def darken(self) -> None:
        """Everything that is connected now is cut off, and nobody is told."""
        for dark in self._dark:
            dark.set()

    def close(self) -> None:
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


def test_a_connection_that_fell_silent_is_replaced() -> None:
    """Ranks and decode alike: a path that went dark must not cost more than `silent_s`."""
    options = replace(HASTY, silent_s=0.5, handshake_s=1.0)
    with World(manifest("prefill", 1), manifest("decode", 1), options) as world:
        relay = Relay(world.registry.port)
        world.stack.callback(relay.close)
        loop = Loop("pdctl-test")
        world.stack.callback(loop.stop)
        record = Register(Rank(0, 0), "host", 1, "relayed", encode_manifest(manifest("prefill", 1)))
        ((first, _),) = world.prefill.values()
        first.close()
        rank = loop.ask(lambda: Registration(loop, ("127.0.0.1", relay.port), options, record))
        routes = loop.ask(lambda: Routes(loop, ("127.0.0.1", relay.port), options))
        assert until(lambda: incarnations(world) == ["relayed"] and not routes.cause)
        relay.darken()
        assert until(lambda: "no answer" in rank.cause and "no answer" in routes.cause)
        answers: list[Route] = []
        loop.call(routes.find, 1, lambda route: answers.append(route) or not route.missing)
        assert until(lambda: bool(answers) and not answers[-1].missing)
        for one in (rank, routes):
            loop.ask(one.close)


def test_somebody_who_accepts_and_says_nothing_is_no_registry() -> None:
    options = replace(HASTY, handshake_s=0.2)
    loop = Loop("pdctl-test")
    with socket.create_server(("127.0.0.1", 0)) as server:
        routes = loop.ask(lambda: Routes(loop, server.getsockname(), options))
        assert until(lambda: "no answer in 0.2 s" in routes.cause)
        assert routes.code == "PD4001"
        loop.ask(routes.close)
    loop.stop()


def test_a_room_that_failed_is_known_for_a_while_and_one_that_is_over_not_at_all() -> None:
    options = replace(HASTY, bootstrap_s=0.5)
    with World(manifest("prefill", 1, dp=2), manifest("decode", 1), HASTY) as world:
        loop = Loop("pdctl-test")
        world.stack.callback(loop.stop)
        for peer, _ in world.prefill.values():
            peer.close()
        made = encode_manifest(manifest("prefill", 1, dp=2))
        clients = [
            loop.ask(
                lambda dp=dp: Registration(loop, world.at, options, Register(Rank(0, 0, dp), "host", 1, str(dp), made))
            )
            for dp in range(2)
        ]
        assert until(lambda: incarnations(world) == ["0", "1"])

        def missing(room: int) -> str:
            return str(world.registry._loop.ask(lambda: world.registry._table.route(1, room)).missing)

        for room in (1, 2, 3):
            loop.call(clients[1].room_at, room)
        assert until(lambda: not any(missing(room) for room in (1, 2, 3)))
        loop.call(clients[1].room_over, 1)
        assert until(lambda: "opened room 1" in missing(1))
        loop.ask(lambda: clients[1].room_over(2, failed=True))
        assert not missing(2)
        assert until(lambda: "opened room 2" in missing(2))
        assert not missing(3)
        for one in clients:
            loop.ask(one.close)


def test_a_client_keeps_so_many_rooms_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the registry is away for good."""
    monkeypatch.setattr(client, "MAX_ROOMS", 3)
    loop = Loop("pdctl-test")
    record = Register(Rank(0, 0), "host", 1, "a", encode_manifest(manifest("prefill", 1, dp=2)))
    with socket.create_server(("127.0.0.1", 0)) as server:
        lonely = loop.ask(lambda: Registration(loop, server.getsockname(), HASTY, record))
        for room in range(5):
            loop.call(lonely.room_at, room)
        assert loop.ask(lambda: list(lonely._rooms)) == [2, 3, 4]
        loop.ask(lonely.close)
    loop.stop()


class Deaf:
    """A registry that hears the first of all lookups only from its `hears`-th on."""

    def __init__(self, hears: int) -> None:
        self.heard: list[int] = []
        self._hears = hears
        self._loop = Loop("pdctl-deaf")
        self._listener = Listener(self._loop, "127.0.0.1", 0, self._accept, None)
        self.at = ("127.0.0.1", self._listener.port)

    def _accept(self, channel: Channel) -> None:
        channel.owner = self

    def opened(self, channel: Channel) -> None: ...

    def received(self, channel: Channel, message: AnyMessage) -> None:
        if isinstance(message, Beat):
            channel.send(message)
        if isinstance(message, Lookup):
            self.heard.append(message.room)
            if len(self.heard) >= self._hears:
                channel.send(Route(message.serial, "", (), b""))

    def lost(self, channel: Channel, cause: str) -> None: ...

    def close(self) -> None:
        self._loop.call(self._listener.close)
        self._loop.stop()


def test_an_unanswered_lookup_is_asked_again() -> None:
    deaf, loop = Deaf(hears=3), Loop("pdctl-test")
    routes = loop.ask(lambda: Routes(loop, deaf.at, HASTY))
    answers: list[Route] = []
    loop.call(routes.find, 5, lambda route: answers.append(route) or True)
    assert until(lambda: len(answers) == 1)
    assert deaf.heard == [5, 5, 5]
    loop.ask(routes.close)
    loop.stop()
    deaf.close()


def test_a_question_that_is_withdrawn_is_not_asked_and_not_answered() -> None:
    """By its room, or only the one of several."""
    deaf, loop = Deaf(hears=1), Loop("pdctl-test")
    routes = loop.ask(lambda: Routes(loop, deaf.at, HASTY))
    answers: list[str] = []

    def ask() -> None:
        names = [(5, "a"), (5, "b"), (6, "c"), (7, "d")]
        wanted = {name: lambda route, name=name: answers.append(name) or True for _, name in names}
        for room, name in names:
            routes.find(room, wanted[name])
        routes.withdraw(5, wanted["a"])
        routes.withdraw(6)

    loop.ask(ask)
    assert until(lambda: len(answers) >= 2)
    assert not until(lambda: len(answers) > 2, 0.3)
    assert sorted(answers) == ["b", "d"]
    loop.ask(routes.close)
    loop.stop()
    deaf.close()
