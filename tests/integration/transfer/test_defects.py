"""A defect of ours on a worker: one request ends at once, on both sides, with the code that says so."""

import time
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl_transfer.session.bytes import checksum, copying
from pdctl_transfer.session.drive.legwork import LegWork
from tests.integration.transfer.ranks import OPTIONS, Host, Process, Spec, indices, pair, rooms
from tests.integration.transfer.wide import FORKS
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration

ITEMS = 64
AT_ONCE_S = 5.0


def no_memory(*args: Any, **kwargs: Any) -> Any:
    raise MemoryError("planted")


def bad_value(*args: Any, **kwargs: Any) -> Any:
    raise ValueError("planted")


def bad_state(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


class Defective(Host):
    """A side with a defect that can be planted and taken out."""

    def plant(self, where: str) -> None:
        """From now on this raises. A function keeps its identity: whoever imported it has the defect too."""
        self._undo: list[Any] = []
        if where == "fabric.begin":
            for fabric in self.fabrics:
                fabric.begin = bad_state
                self._undo.append(lambda fabric=fabric: delattr(fabric, "begin"))
            return
        function, broken = {
            "sums": (checksum.sums, no_memory),
            "scatter": (copying.scatter, bad_value),
            "cut": (LegWork.cut, bad_state),
        }[where]
        code = function.__code__
        function.__code__ = broken.__code__
        self._undo.append(lambda: setattr(function, "__code__", code))

    def mend(self) -> None:
        for undo in self._undo:
            undo()


def move(prefill: Process, decode: Process) -> tuple[int, dict[str, list[int]]]:
    """Start a request; its room, and where decode wants it."""
    room = next(rooms)
    theirs = indices(room + 1, ITEMS, 8)
    decode.call("open", room, prefill.call("address"), theirs)
    prefill.call("send", room, indices(room, ITEMS, 8))
    return room, theirs


@pytest.mark.code("PD4042")
@pytest.mark.parametrize(
    ("side", "where", "tps"),
    [
        ("prefill", "fabric.begin", (1, 1)),
        ("prefill", "fabric.begin", (1, 2)),
        ("prefill", "fabric.begin", (2, 1)),
        ("prefill", "sums", (1, 1)),
        ("decode", "sums", (1, 1)),
        ("decode", "scatter", (2, 1)),
        ("prefill", "cut", (1, 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "tp{}-{}".format(*value),
)
def test_a_defect_on_a_worker_ends_the_request_and_nothing_else(side: str, where: str, tps: tuple[int, int]) -> None:
    """Fails if a thread dies of it and somebody waits for its answer: the room until transfer_s, its pages for ever."""
    options = replace(OPTIONS, transfer_s=40)
    made = [manifest(role, tp, scale=64) for role, tp in zip(("prefill", "decode"), tps, strict=True)]
    specs = [Spec(one, tuple(ranks(one)), options=options, items=ITEMS) for one in made]
    with pair(*specs, Defective, FORKS) as (prefill, decode):
        room, theirs = move(prefill, decode)
        assert {end[0] for end in decode.call("wait", room)} == {"confirmed"}
        broken = {"prefill": prefill, "decode": decode}[side]
        broken.call("plant", where)
        began = time.monotonic()
        room, _ = move(prefill, decode)
        ends = prefill.call("wait", room, AT_ONCE_S) + decode.call("wait", room, AT_ONCE_S)
        assert {end[:3] for end in ends} == {("failed", "PD4042", side)}, ends
        assert time.monotonic() - began < AT_ONCE_S
        assert all(end[3] for end in ends)
        assert prefill.call("wait_reusable", room, 10.0)
        assert decode.call("wait_reusable", room, 10.0)
        broken.call("mend")
        room, theirs = move(prefill, decode)
        assert {end[0] for end in decode.call("wait", room)} == {"confirmed"}, decode.call("wait", room)
        assert decode.call("wrong", room, theirs) == []
