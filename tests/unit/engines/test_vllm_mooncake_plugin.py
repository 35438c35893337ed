"""The plugin in vLLM's Mooncake connector, with its worker as a stand-in; the real one is in tests/engines."""

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl.derive import Request, derive
from pdctl.engines.builtin_models import CONFIGS
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.plugins import peer, vllm_mooncake
from pdctl_transfer.plugins.stages import Stages
from pdctl_transfer.plugins.vllm_state import state
from pdctl_transfer.telemetry import Telemetry
from tests.unit.engines.serving import Handler, serving


def layout(role: Role, model: str = "tiny-llama", page_size: int = 128, pp: int = 1) -> Manifest:
    asked = Request(engine="vllm", role=role, config=CONFIGS[model], model_name=model, page_size=page_size, pp=pp)
    return derive(replace(asked, backend="mooncake")).manifest


class Bootstrap(Handler):
    """The stages of a prefill engine, over HTTP."""

    def do_GET(self) -> None:
        self.answer(*self.server.stages.get())  # type: ignore[attr-defined]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(*self.server.stages.put(body))  # type: ignore[attr-defined]


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with serving(Bootstrap, stages=Stages()) as server:
        yield f"127.0.0.1:{server.server_address[1]}"


class Worker:
    """What decode's worker does with a prefill engine that it has not met."""

    def __init__(self) -> None:
        self.failed: list[tuple[list[str], str]] = []
        self.met: list[str] = []

    def _handle_failed_recv(self, pulls: Any, requests: list[str], reason: str) -> None:
        vllm_mooncake.note_failure(self, pulls, requests, reason)
        self.failed.append((requests, reason))

    async def connect(self, engine_id: str, pulls: Any) -> None:
        self.met.append(engine_id)


def meet(address: str, monkeypatch: pytest.MonkeyPatch, own: Manifest | None) -> Worker:
    monkeypatch.setattr(state, "manifest", own)
    monkeypatch.setattr(state, "failing", {})
    monkeypatch.setattr(state, "telemetry", Telemetry("decode", "pp0tp0", 16))
    worker, pulls = Worker(), {"r": SimpleNamespace(remote_bootstrap_addr=f"http://{address}")}
    asyncio.run(vllm_mooncake.handshake(Worker.connect, worker, "engine", pulls))
    return worker


@pytest.mark.parametrize(
    ("theirs", "code"),
    [
        (layout("prefill", page_size=256), "PD1001"),
        (layout("prefill", model="tiny-llama-deep"), "PD1013"),
        (replace(layout("prefill"), kv_layout="nhd"), "PD1003"),
        (replace(layout("prefill"), kv_cache_dtype="float16"), "PD1002"),
    ],
)
def test_a_misfit_fails_its_requests_before_any_address_is_sent(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, theirs: Manifest, code: str
) -> None:
    """Another order of axes or dtype of the same size has the same lengths: the connector itself lets it pass."""
    assert peer.publish(bootstrap, theirs)
    worker = meet(bootstrap, monkeypatch, layout("decode"))
    ((requests, reason),) = worker.failed
    assert (requests, worker.met) == (["r"], [])
    assert code in reason
    state.settle(worker, SimpleNamespace(finished_recving={"r"}, failed_recving=set()))
    (event,) = state.telemetry.events()
    assert (event.what, event.request, event.data["code"]) == ("failed", "r", reason[:6])


@pytest.mark.parametrize("own", [layout("decode"), None])
def test_a_pair_that_fits_or_cannot_be_judged_takes_the_engines_own_path(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch, own: Manifest | None
) -> None:
    assert peer.publish(bootstrap, layout("prefill"))
    worker = meet(bootstrap, monkeypatch, own)
    assert (worker.met, worker.failed) == (["engine"], [])


def test_a_prefill_that_is_gone_is_left_to_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meet("127.0.0.1:1", monkeypatch, layout("decode")).met == ["engine"]


def test_stages_that_have_not_spoken_are_waited_for(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged on one stage of two, a pair would be refused for layers that the other holds."""
    whole = layout("prefill", pp=2)
    parts = [replace(whole, stages=(stage,)) for stage in whole.stages]
    assert peer.publish(bootstrap, parts[1])
    with pytest.raises(peer.NotYet):
        peer.fetch(bootstrap)
    waited: list[float] = []

    def speak(seconds: float) -> None:
        waited.append(seconds)
        assert peer.publish(bootstrap, parts[0])

    monkeypatch.setattr(time, "sleep", speak)
    worker = meet(bootstrap, monkeypatch, layout("decode"))
    assert (len(waited), worker.failed) == (1, [])
    assert peer.fetch(bootstrap) == whole


def test_what_is_no_manifest_is_not_kept() -> None:
    stages = Stages()
    assert stages.put(b"{}")[0] == 400
    assert stages.get() == (503, b"0 stages registered so far")
    part = layout("prefill")
    assert stages.put(encode_manifest(part)) == (200, b"OK")
    assert stages.get() == (200, encode_manifest(part))


def test_only_the_first_rank_of_a_prefill_stage_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "publish", lambda *_: pytest.fail("spoke"))
    monkeypatch.setattr(state, "manifest", layout("decode"))
    for consumer, tp, dp in ((True, 0, 0), (False, 1, 0), (False, 0, 1)):
        vllm_mooncake.publish(SimpleNamespace(is_kv_consumer=consumer, tp_rank=tp, dp_rank=dp))


@pytest.mark.code("PD3111")
def test_each_write_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "telemetry", Telemetry("prefill", "pp0tp0", 16))
    for status in (0, -1):
        write = lambda *_, status=status: status  # noqa: E731
        assert vllm_mooncake.send_blocks(write, None, "10.0.0.1:1", [1, 2], [3, 4], [64, 32]) == status
    written, failed = state.telemetry.events()
    assert (written.peer, written.data["bytes"], written.data["blocks"]) == ("10.0.0.1:1", 96, 2)
    assert failed.data["code"] == "PD3111"
