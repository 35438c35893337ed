"""What plugins ask and are told over HTTP, inside engines: nobody on the other side may hold or mislead them."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import ManifestError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins import peer
from pdctl_transfer.plugins.ask import ask
from pdctl_transfer.plugins.stages import MAX_BYTES, MAX_STAGES, Stages
from pdctl_transfer.plugins.vllm_mooncake import beginning
from tests.hostile import MODES, hostile
from tests.unit.engines.test_vllm_mooncake_plugin import layout

DEADLINE_S, SLACK_S = 0.5, 5.0
HARMLESS = {"deep": 200, "wide": 200, "number": 200, "nothing": 200, "redirect": 302, "escapes": 500}
"""Modes whose answer is short and whole, with its status: what is in it is for others to judge."""


@pytest.mark.parametrize("mode", MODES)
def test_a_question_has_a_deadline_a_limit_and_one_who_is_asked(mode: str) -> None:
    with hostile(mode) as port:
        began = time.monotonic()
        url = f"http://127.0.0.1:{port}/pdctl/layout"
        if mode in HARMLESS:
            status, body = ask("GET", url, deadline_s=10.0)
            assert status == HARMLESS[mode]
            assert len(body) < 4 << 20
        else:
            with pytest.raises(OSError, match=r".") as caught:
                ask("PUT", url, b"x" * 1_000_000, deadline_s=DEADLINE_S)
            assert len(str(caught.value)) < 200
        assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("mode", MODES)
def test_a_hostile_peer_is_no_peer(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unanswered, or no manifest; never a fault that the engine would see."""
    monkeypatch.setattr(peer.ask, "__kwdefaults__", {"deadline_s": DEADLINE_S, "limit_bytes": 4 << 20})
    with hostile(mode) as port:
        began = time.monotonic()
        for question in (peer.fetch, peer.fetch_sizes):
            with pytest.raises((peer.Unanswered, ManifestError)):
                question(f"127.0.0.1:{port}")
        assert time.monotonic() - began < 2 * DEADLINE_S + SLACK_S


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with hostile("nothing") as port:
        assert ask("GET", f"http://127.0.0.1:{port}/") == (200, b"")


# ---- what a bootstrap server takes ----

WHOLE = layout("prefill", pp=2)
PARTS = [replace(WHOLE, stages=(stage,)) for stage in WHOLE.stages]


def ranked(part: Manifest, rank: int, pp: int) -> Manifest:
    stage = replace(part.stages[0], pp_rank=rank)
    return replace(part, stages=(stage,), parallel=replace(part.parallel, pp=pp))


def test_each_rank_says_once_what_it_holds() -> None:
    stages = Stages()
    assert [stages.put(encode_manifest(part))[0] for part in (*PARTS, *PARTS)] == [200] * 4, (
        "the same may be said again"
    )
    assert stages.get() == (200, encode_manifest(WHOLE))


@pytest.mark.parametrize(
    ("strange", "status"),
    [
        (replace(PARTS[0], page_size=999), 409),
        (replace(PARTS[1], page_size=999), 409),
        (replace(PARTS[1], kv_cache_dtype="fp8_e5m2"), 409),
        (ranked(PARTS[1], 1, 4096), 400),
        (ranked(PARTS[1], 1, 3), 409),
        (replace(PARTS[1], stages=(replace(PARTS[1].stages[0], components=()),)), 409),
        (replace(PARTS[1], role="decode"), 400),
        (WHOLE, 400),
        (replace(WHOLE, stages=()), 400),
        (ranked(PARTS[1], 2, 2), 400),
        (ranked(PARTS[1], -1, 2), 400),
        (ranked(PARTS[0], 0, MAX_STAGES + 1), 400),
    ],
)
def test_a_stranger_changes_nothing(strange: Manifest, status: int) -> None:
    stages = Stages()
    for part in PARTS:
        stages.put(encode_manifest(part))
    said, text = stages.put(encode_manifest(strange))
    assert (said, bool(text)) == (status, True)
    assert stages.get() == (200, encode_manifest(WHOLE))


def test_much_is_not_kept() -> None:
    stages = Stages()
    assert stages.put(b" " * (MAX_BYTES + 1))[0] == 413
    said = {stages.put(encode_manifest(ranked(PARTS[0], rank, 4096)))[0] for rank in range(200)}
    assert said == {400}
    assert stages.get()[0] == 503


def test_a_body_is_read_no_further_than_its_limit() -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1 << 16
            yield b" " * (1 << 16)

    assert len(asyncio.run(beginning(endless()))) > MAX_BYTES
    assert taken < 2 * MAX_BYTES
