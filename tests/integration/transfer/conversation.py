"""One room between the ranks of a world, step by step."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.integration.transfer.gauges import gauge
from tests.unit.transfer_session.world import World, indices, rooms

OWNER = 0x55


class Conversation:
    """A room of which each step is taken when the test wants it."""

    def __init__(self, world: World, pages: int = 12, dp: int = 0, room: int | None = None) -> None:
        self._world = world
        self.room = next(rooms) if room is None else room
        rng = np.random.default_rng(self.room)
        self._here = {rank: indices(rng, world.items, pages) for rank in world.prefill if rank.dp == dp}
        self._there = {rank: indices(rng, world.items, pages) for rank in world.decode}
        self.senders: list[Any] = []
        self.receivers: list[Any] = []

    def ask(self) -> None:
        """Decode opens the room."""
        for rank, ids in self._there.items():
            self.receivers.append(self._world.decode[rank][0].open(self.room, self._world.at, ids))

    def expect(self) -> None:
        """Prefill opens it."""
        self.senders = [self._world.prefill[rank][0].open(self.room) for rank in self._here]

    def send(self) -> None:
        """Prefill's state is in place."""
        for (rank, ids), handle in zip(self._here.items(), self.senders, strict=True):
            self._world.prefill[rank][1].fill(self.room, ids)
            handle.send(ids, b"m")

    def run(self) -> "Conversation":
        """All three."""
        self.ask()
        self.expect()
        self.send()
        return self

    @property
    def handles(self) -> list[Any]:
        """Of both sides."""
        return self.senders + self.receivers

    @property
    def said(self) -> list[str]:
        """States of both sides, and why."""
        sides = [("prefill", handle) for handle in self.senders] + [("decode", handle) for handle in self.receivers]
        return [f"{side}: {handle.failure or handle.state}" for side, handle in sides]

    def reach(self, state: str) -> None:
        """Wait until every handle is in this state."""
        until(lambda: all(handle.state == state for handle in self.handles), 5.0, f"not all are {state}")

    def confirmed(self, within_s: float = 10.0) -> None:
        """All handles are in time, their buffers are reusable, the bytes are right; and they stay a new owner's."""
        end = time.monotonic() + within_s
        while any(handle.state not in {"confirmed", "failed"} for handle in self.handles) and time.monotonic() < end:
            if any(handle.state == "failed" for handle in self.handles):
                break
            time.sleep(0.002)
        assert {handle.state for handle in self.handles} == {"confirmed"}, self.said
        assert all(handle.wait_reusable(1.0) for handle in self.handles)
        for rank, ids in self._there.items():
            buffers = self._world.decode[rank][1]
            assert buffers.wrong(self.room, ids) == []
            for (kind, _), array in zip(buffers.entries(), buffers.arrays, strict=True):
                array[ids[kind]] = OWNER

    def untouched(self) -> None:
        """The new owner's bytes are as he left them."""
        for rank, ids in self._there.items():
            buffers = self._world.decode[rank][1]
            for (kind, entry), array in zip(buffers.entries(), buffers.arrays, strict=True):
                assert (array[ids[kind]] == OWNER).all(), f"{kind} {entry.layer} {entry.tensor} was written late"


def until(condition: Callable[[], bool], within_s: float, otherwise: str) -> None:
    """Wait for it. AssertionError with these words where it does not come true."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.005)


def gauges(world: World) -> dict[str, float]:
    """What may be lent or kept, of every rank of a world."""
    names = {"prefill": ("scratch_free_slots", "open_rooms"), "decode": ("staging_free_slots", "quarantined")}
    return {
        f"{side} {rank} {name}": gauge(peer.telemetry.exposition(), name)
        for side, peers in (("prefill", world.prefill), ("decode", world.decode))
        for rank, (peer, _) in peers.items()
        for name in names[side]
    }


def ways(world: World, kind: str) -> set[str]:
    """How the bytes of this kind have travelled."""
    texts = [peer.telemetry.exposition() for peer, _ in world.prefill.values()]
    lines = [line for text in texts for line in text.splitlines() if f'kind="{kind}"' in line]
    return {way for way in ("direct", "packed", "staged") for line in lines if f'way="{way}"' in line}
