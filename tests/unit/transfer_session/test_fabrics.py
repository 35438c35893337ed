"""Fabrics say what they are and what is wrong, before anything crashes. The libraries run in the integration tests."""

import importlib
import itertools
import os
import socket
import struct
import threading
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric import evidence, mooncake, mooncake_self, nixl
from pdctl_transfer.fabric.base import Blocks, Deadline
from pdctl_transfer.fabric.memory import MemoryFabric


class Engine:
    """Stands for Mooncake's engine: `answers` are the statuses that its calls return."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls.append((name, len(args[1]) if name.startswith("batch_transfer") else 1))
            answer = self.answers.get(name, 0)
            return answer(*args) if callable(answer) else answer

        return call


WORKS = {"get_rpc_port": 7, "batch_transfer_async_write": 11, "transfer_submit_write": 12, "transfer_check_status": 1}


def fabric_on(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> mooncake.MooncakeFabric:
    module = types.SimpleNamespace(TransferEngine=lambda: engine)
    monkeypatch.setattr(mooncake.importlib, "import_module", lambda name: module)
    return mooncake.MooncakeFabric()


def blocks(count: int) -> Blocks:
    return Blocks(*(np.arange(1, count + 1) for _ in range(3)))


@pytest.mark.code("PD4010")
@pytest.mark.parametrize("make", [mooncake.MooncakeFabric, nixl.NixlFabric])
def test_a_missing_library_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("libibverbs.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(FabricError, match=r"libibverbs\.so\.1") as caught:
        make()
    assert caught.value.code == "PD4010"


@pytest.mark.code("PD4010")
def test_an_engine_that_does_not_start_is_never_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call would crash the process."""
    engine = Engine(initialize=-1)
    with pytest.raises(FabricError, match="status -1"):
        fabric_on(monkeypatch, engine)
    assert [name for name, _ in engine.calls] == ["initialize"]


@pytest.mark.code("PD4014")
def test_memory_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(**WORKS)
    fabric = fabric_on(monkeypatch, engine)
    engine.answers["register_memory"] = -202
    with pytest.raises(FabricError, match="-202") as caught:
        fabric.register(1, 2)
    assert caught.value.code == "PD4014"


def test_no_more_blocks_are_queued_than_mooncake_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 blocks: five submissions, never more than two of them under way."""
    engine = Engine(**WORKS)
    fabric = fabric_on(monkeypatch, engine)
    peer = fabric.connect(fabric.address())
    engine.calls.clear()
    assert fabric.write(peer, blocks(5000), Deadline(5)).calls == 5
    queued = most = 0
    for name, count in engine.calls:
        queued += count if name in {"batch_transfer_async_write", "transfer_submit_write"} else 0
        queued -= 1000 if name == "transfer_check_status" else 0
        most = max(most, queued)
    assert queued == 0
    assert most <= 2048


def test_mooncake_is_not_asked_again_about_a_batch_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It never answers that: the thread would be lost."""
    looks: Counter[int] = Counter()
    ids = itertools.count(100)

    def status(batch: int) -> int:
        looks[batch] += 1
        assert looks[batch] <= 3
        return mooncake.DONE if looks[batch] == 3 else mooncake.RUNNING

    fabric = fabric_on(
        monkeypatch,
        Engine(**WORKS | {"transfer_submit_write": lambda *args: next(ids), "transfer_check_status": status}),
    )
    peer = fabric.connect(fabric.address())
    assert fabric.write(peer, blocks(5000), Deadline(5)).ok
    left = fabric.begin(peer, blocks(10))
    left.look()
    assert not left.leave().settled
    fabric._observed = "tcp"
    monkeypatch.setattr(mooncake, "FENCE_GAP_S", 0.0)
    assert [fabric.settle(peer) for _ in range(3)][-1]
    assert set(looks.values()) == {3}


@pytest.mark.parametrize("failing", ["batch_transfer_async_write", "transfer_submit_write"])
def test_a_submission_that_fails_is_not_settled(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero is failure, and Mooncake may still be writing what it took before."""
    engine = Engine(**WORKS)
    fabric = fabric_on(monkeypatch, engine)
    engine.answers[failing] = 0
    result = fabric.write(fabric.connect(fabric.address()), blocks(10), Deadline(5))
    assert (result.ok, result.settled, result.code) == (False, False, "PD4011")


def test_a_write_that_hangs_is_left_at_the_deadline_and_settled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(**WORKS)
    fabric = fabric_on(monkeypatch, engine)
    fabric._observed = "tcp"
    engine.answers["transfer_check_status"] = 0
    peer = fabric.connect(fabric.address())
    result = fabric.write(peer, blocks(10), Deadline(0.05))
    assert (result.ok, result.settled, result.code) == (False, False, "PD4031")
    monkeypatch.setattr(mooncake, "FENCE_S", 0.05)
    assert not fabric.settle(peer)
    engine.answers["transfer_check_status"] = 1
    assert fabric.settle(peer)
    assert peer.pending == []


def test_without_order_there_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several connections a peer, or RDMA: a fence would prove nothing."""
    monkeypatch.setenv("MC_TCP_LANES_PER_PEER", "4")
    fabric = fabric_on(monkeypatch, Engine(**WORKS))
    fabric._observed = "tcp"
    assert not fabric.settle(fabric.connect(fabric.address()))


@pytest.mark.parametrize(
    ("verbs", "listeners", "seen"), [(True, {1}, "rdma"), (False, {1}, "tcp"), (False, (), "unknown")]
)
def test_the_transport_is_what_the_kernel_saw(
    verbs: bool, listeners: Any, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was asked for."""
    states = iter([frozenset(), frozenset(listeners)])
    monkeypatch.setattr(mooncake, "holds_verbs", lambda: verbs)
    monkeypatch.setattr(mooncake, "open_listeners", lambda: next(states))
    assert fabric_on(monkeypatch, Engine(**WORKS)).observed_transport() == seen


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for fabric in (MemoryFabric(), fabric_on(monkeypatch, Engine(**WORKS))):
        with pytest.raises(FabricError) as caught:
            fabric.connect(b"\xc1 nowhere")
        assert caught.value.code == "PD4011"


def test_evidence_of_tcp_counts_what_peers_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as out:
        into, _ = server.accept()
        with into:
            before = evidence.tcp_bytes_acked()
            out.sendall(b"x" * 100_000)
            got = 0
            while got < 100_000:
                got += len(into.recv(65536))
            assert evidence.tcp_bytes_acked() - before >= 90_000


def test_evidence_of_listeners_is_of_those_open_to_everybody() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everybody, socket.create_server(("127.0.0.1", 0)) as here:
        found = evidence.open_listeners()
        assert everybody.getsockname()[1] in found
        assert here.getsockname()[1] not in found


@contextmanager
def speaking(answer: bytes) -> Iterator[str]:
    """Something that answers each connection with these bytes; its session."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    wire, _ = server.accept()
                except OSError:
                    return
                with wire:
                    wire.recv(64)
                    wire.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def described(text: str) -> bytes:
    return struct.pack("<Q", len(text) + 1) + b"\x01" + text.encode()


GARBAGE = [
    b"",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    described("[]"),
    described("{"),
    described("[" * 9999),
    b"\xff" * 64,
]


@pytest.mark.parametrize("answer", GARBAGE)
def test_an_adopted_engine_that_is_not_understood_is_of_unknown_transport(answer: bytes) -> None:
    """Another Mooncake may answer otherwise: nothing is guessed, and no proof is claimed."""
    with speaking(answer) as session:
        fabric = mooncake.MooncakeFabric.adopt(Engine(**WORKS), session)
    assert fabric.observed_transport() == "unknown"
    assert fabric.exposed_ports() == ()
    assert not fabric.settle(fabric.connect(fabric.address()))


@pytest.mark.parametrize(
    ("said", "verbs", "seen"),
    [("rdma", True, "rdma"), ("rdma", False, "unknown"), ("tcp", True, "tcp"), ("tcp", False, "tcp")],
)
def test_an_adopted_engine_s_transport_is_what_it_tells_its_peers(
    said: str, verbs: bool, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a verbs device that NCCL holds open is taken for Mooncake's."""
    monkeypatch.setattr(mooncake_self, "holds_verbs", lambda: verbs)
    with socket.create_server(("0.0.0.0", 0)) as data:
        port = data.getsockname()[1]
        with speaking(described(f'{{"protocol": "{said}", "tcp_data_port": {port}}}')) as session:
            fabric = mooncake.MooncakeFabric.adopt(Engine(**WORKS), session, [], "rdma")
        assert (fabric.observed_transport(), fabric.requested) == (seen, "rdma")
        assert fabric.exposed_ports() == (port,)


@pytest.mark.code("PD4017")
@pytest.mark.parametrize("session", ["", "host", "host:", ":1", "host:99999", "127.0.0.1:1"])
def test_what_is_no_session_of_an_engine_is_not_adopted(session: str) -> None:
    engine = Engine(**WORKS)
    with pytest.raises(FabricError) as caught:
        mooncake.MooncakeFabric.adopt(engine, session)
    assert caught.value.code == "PD4017"
    assert engine.calls == []


def test_an_adopted_engine_keeps_most_of_the_queue_for_itself() -> None:
    engine = Engine(**WORKS)
    with speaking(b"") as session:
        fabric = mooncake.MooncakeFabric.adopt(engine, session, [(1000, 100)])
    peer = fabric.connect(fabric.address())
    assert fabric.write(peer, blocks(5000), Deadline(5)).ok
    queued = most = 0
    for name, count in engine.calls:
        queued += count if name in {"batch_transfer_async_write", "transfer_submit_write"} else 0
        queued -= mooncake.SHARED_BATCH if name == "transfer_check_status" else 0
        most = max(most, queued)
    assert most <= 512


def test_what_an_adopted_engine_holds_is_neither_registered_nor_forgotten() -> None:
    """A region that reaches beyond it is registered; on close goes what was registered here, and the engine stays."""
    engine = Engine(**WORKS)
    with speaking(b"") as session:
        fabric = mooncake.MooncakeFabric.adopt(engine, session, [(1000, 100), (2000, 100)])
    for base, nbytes in ((1000, 100), (1010, 90), (2000, 101), (5000, 1)):
        fabric.register(base, nbytes)
        fabric.deregister(1000)
    fabric.deregister(5000)
    fabric.deregister(5000)
    done = Counter(name for name, _ in engine.calls)
    assert (done["register_memory"], done["unregister_memory"]) == (3, 1)  # the fence is one
    fabric.close()
    fabric.close()
    assert Counter(name for name, _ in engine.calls)["unregister_memory"] == 3


def test_one_connection_a_peer_is_asked_for_unless_the_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_TCP_LANES_PER_PEER", "4")
    mooncake.MooncakeFabric.ordered()
    assert os.environ["MC_TCP_LANES_PER_PEER"] == "4"
    monkeypatch.delenv("MC_TCP_LANES_PER_PEER")
    mooncake.MooncakeFabric.ordered()
    assert os.environ["MC_TCP_LANES_PER_PEER"] == "1"
