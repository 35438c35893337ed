"""Frames: whole whatever the stream's cuts, and worthless to who does not know the secret."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl_transfer.session.wire.frames import FIRST_FRAME, MAGIC, MAX_FRAME, FrameError, Framer


def joined(secret: bytes | None = b"s", other: bytes | None = b"s") -> tuple[Framer, Framer]:
    here, there = Framer(secret, connector=True, protocol=1), Framer(other, connector=False, protocol=1)
    assert here.feed(there.preamble) == []
    assert there.feed(here.preamble) == []
    return here, there


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.integers(1, 50), min_size=1, max_size=40))
def test_bodies_arrive_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    here, there = joined()
    stream = b"".join(here.frame(body) for body in bodies)
    got, at, i = [], 0, 0
    while at < len(stream):
        step = cuts[i % len(cuts)]
        got += there.feed(stream[at : at + step])
        at, i = at + step, i + 1
    assert got == bodies


@given(st.binary(max_size=300))
def test_noise_is_refused_or_waited_for_and_never_believed(noise: bytes) -> None:
    framer = Framer(None, connector=False, protocol=1)
    with suppress(FrameError):
        assert framer.feed(noise) == []


@given(st.binary(min_size=1, max_size=100), st.integers(0, 10_000))
def test_a_changed_byte_is_noticed(body: bytes, where: int) -> None:
    here, there = joined()
    frame = bytearray(here.frame(body))
    at = 4 + where % (len(frame) - 4)
    frame[at] ^= 1
    with pytest.raises(FrameError):
        there.feed(bytes(frame))


@pytest.mark.code("PD4008")
def test_another_secret_is_refused() -> None:
    here, there = joined(b"one", b"two")
    with pytest.raises(FrameError) as caught:
        there.feed(here.frame(b"hello"))
    assert caught.value.code == "PD4008"


@pytest.mark.code("PD4007")
def test_another_protocol_is_named() -> None:
    framer = Framer(None, connector=False, protocol=1)
    with pytest.raises(FrameError, match="protocol 9, this side speaks 1") as caught:
        framer.feed(MAGIC + bytes([9]))
    assert caught.value.code == "PD4007"


def test_a_frame_cannot_be_replayed() -> None:
    """Neither on its connection nor on another one with the same secret."""
    here, there = joined()
    frame = here.frame(b"pay")
    assert there.feed(frame) == [b"pay"]
    with pytest.raises(FrameError):
        there.feed(frame)
    _, another = joined()
    with pytest.raises(FrameError):
        another.feed(frame)


def test_a_frame_cannot_be_reflected() -> None:
    """What one side signed is not taken as the other's."""
    here, _ = joined()
    with pytest.raises(FrameError):
        here.feed(here.frame(b"mine"))


@pytest.mark.parametrize(("before", "limit"), [(0, FIRST_FRAME), (1, MAX_FRAME)])
def test_a_length_over_the_limit_is_refused_before_it_is_stored(before: int, limit: int) -> None:
    """A stranger may announce little; whoever has proven itself, as much as a message can be."""
    here, there = joined()
    for _ in range(before):
        there.feed(here.frame(b"I live"))
    with pytest.raises(FrameError, match="over the limit"):
        here.frame(bytes(limit + 1))
    assert there.feed(here.frame(bytes(limit))[:-1]) == []
    here, there = joined()
    for _ in range(before):
        there.feed(here.frame(b"I live"))
    with pytest.raises(FrameError, match="over the limit"):
        there.feed((limit + 1).to_bytes(4, "big") + bytes(16))
