"""The plugin inside vLLM, with its worker and scheduler as stand-ins; the real ones are in tests/engines."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pdctl.check.compare import differences
from pdctl.derive import Request, derive
from pdctl.derive.flags import apply
from pdctl.engines.builtin_models import CONFIGS
from pdctl_transfer.layout.manifest import Entry, Manifest, Model, Parallel
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.plugins import stated, vllm_nixl
from pdctl_transfer.plugins.vllm_layout import Side, layer_of, layout_name, manifest, of_peer
from pdctl_transfer.plugins.vllm_state import state

DATA = Path(__file__).parents[2] / "data" / "engines"
BF16 = SimpleNamespace(itemsize=2)


def attention(block_size: int, heads: int) -> SimpleNamespace:
    size = block_size * heads * 64 * 2
    return SimpleNamespace(block_size=block_size, num_kv_heads=heads, real_page_size_bytes=size, sliding_window=None)


def delta_net(heads_q: int, heads_v: int, *, taps_first: bool) -> SimpleNamespace:
    channels = (2 * heads_q + heads_v) * 128
    window = (3, channels) if taps_first else (channels, 3)
    return SimpleNamespace(block_size=0, shapes=(window, (heads_v, 128, 128)), dtypes=(BF16, BF16))


def side(model: str, page_size: int, tp: int = 1, role: Any = "decode", backend: str = "nixl") -> Side:
    return Side(
        role=role,
        version="0.32.0",
        model=Model(model, CONFIGS[model]["model_type"]),
        backend=backend,
        parallel=Parallel(attn_tp=tp),
        layers=(0, CONFIGS[model]["num_hidden_layers"]),
        kv_heads=2,
        page_size=page_size,
        kv_cache_dtype="auto",
        kv_layout="hnd",
        config=CONFIGS[model],
    )


def llama(page_size: int = 128, tp: int = 1) -> Manifest:
    names = [f"model.layers.{layer}.self_attn.attn" for layer in range(2)]
    groups = [SimpleNamespace(layer_names=names, kv_cache_spec=attention(page_size, 2 // tp))]
    return manifest(groups, side("tiny-llama", page_size, tp))


def metadata(page_size: int, heads: int = 2) -> SimpleNamespace:
    return SimpleNamespace(
        engine_id="e",
        block_size=page_size,
        physical_blocks_per_logical_kv_block=1,
        block_lens=[page_size * heads * 128] * 2,
        kv_cache_layout="LBHNC",
    )


def entries(one: Manifest) -> set[tuple[str, Entry]]:
    return {(component.kind, entry) for component in one.stages[0].components for entry in component.entries}


@pytest.mark.parametrize("tp", [1, 2])
def test_live_attention_equals_the_derived_layout(tp: int) -> None:
    request = Request(engine="vllm", role="decode", config=CONFIGS["tiny-llama"], tp=tp, page_size=128)
    assert entries(llama(tp=tp)) == entries(derive(request).manifest)


@pytest.mark.parametrize(("backend", "taps_first"), [("nixl", False), ("mooncake", True)])
def test_live_hybrid_equals_the_derived_layout(backend: str, taps_first: bool) -> None:
    kinds = CONFIGS["tiny-qwen3-next"]["layer_types"]
    linear = [f"model.layers.{i}.linear_attn" for i, kind in enumerate(kinds) if kind == "linear_attention"]
    full = [f"model.layers.{i}.self_attn.attn" for i, kind in enumerate(kinds) if kind == "full_attention"]
    config = CONFIGS["tiny-qwen3-next"]
    derived = derive(Request(engine="vllm", role="decode", config=config, page_size=128, backend=backend)).manifest
    groups = [
        SimpleNamespace(layer_names=linear, kv_cache_spec=delta_net(2, 4, taps_first=taps_first)),
        SimpleNamespace(layer_names=full, kv_cache_spec=attention(derived.page_size, 2)),
    ]
    assert entries(manifest(groups, side("tiny-qwen3-next", derived.page_size, backend=backend))) == entries(derived)


def test_what_the_real_engine_registered_is_what_is_derived() -> None:
    """The manifest that the plugin showed inside vLLM 0.32 on CPU: its SSM cache is float32, its conv window DS."""
    live = decode_manifest((DATA / "vllm_0.32_cpu_tiny_qwen3_next.json").read_bytes(), "recorded")
    config = CONFIGS["tiny-qwen3-next"]
    request = Request(engine="vllm", role="prefill", config=config, platform="cpu", model_name="tiny-qwen3-next")
    assert differences(derive(request).manifest, live) == []


def test_a_peer_is_rebuilt_from_what_it_says_at_the_handshake() -> None:
    peer = of_peer(metadata(256), llama(), 1)
    assert (peer.role, peer.page_size) == ("prefill", 256)
    assert entries(peer) == entries(llama(256))
    half = of_peer(metadata(128, heads=1), llama(), 2)
    assert entries(half) == entries(llama(tp=2))


def test_a_hybrid_peer_of_equal_blocks_fits_whatever_its_regions_are_padded_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recurrent and attention layers share regions of one padded length: it is not a page's."""
    request = Request(engine="vllm", role="decode", config=CONFIGS["tiny-qwen3-next"], page_size=128)
    own = derive(request).manifest
    padded = SimpleNamespace(**{**vars(metadata(own.page_size)), "block_lens": [999_424, 999_424]})
    assert entries(of_peer(padded, own, 1)) == entries(own)
    monkeypatch.setattr(state, "manifest", own)
    vllm_nixl.check_peer(None, padded, 0, 1)


@pytest.mark.code("PD1020")
def test_unequal_blocks_are_refused_before_any_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """VLLM's own handshake passes 128 against 256, and every prompt's output is wrong with HTTP 200."""
    monkeypatch.setattr(state, "manifest", llama(256))
    with pytest.raises(RuntimeError, match=r"^PD1020: "):
        vllm_nixl.check_peer(None, metadata(128), 0, 1)
    vllm_nixl.check_peer(None, metadata(256), 0, 1)


def test_prefill_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only decode reads; a producer that meets a peer in push mode is not our case."""
    monkeypatch.setattr(state, "manifest", None)
    vllm_nixl.check_peer(None, metadata(128), 0, 1)


class Scheduler:
    """What vLLM's scheduler side does with a finished prefill."""

    def __init__(self, lease: float = 0.0, folder: str = "nowhere", **overrides: Any) -> None:
        model = SimpleNamespace(model=folder, hf_overrides=overrides)
        self.vllm_config = SimpleNamespace(model_config=model)
        self._reqs_need_send = {"r": time.perf_counter() + lease}


def handed_over(lease: float) -> dict[str, Any]:
    params: dict[str, Any] = {"do_remote_prefill": True, "remote_blocks_expiry_time": None}
    request = SimpleNamespace(request_id="r")
    vllm_nixl.add_expiry(lambda *_: (True, params), Scheduler(lease), request, [])
    return params


@pytest.mark.code("PD3112")
def test_an_expired_lease_fails_the_request(caplog: pytest.LogCaptureFixture) -> None:
    """Without it decode reads blocks that prefill has given to someone else, and answers HTTP 200."""
    params = handed_over(lease=-2.0)
    vllm_nixl.note_expired(Scheduler(), SimpleNamespace(request_id="r", kv_transfer_params=params))
    assert "PD3112: request r came 2.0 s after its blocks were freed" in caplog.text
    failed: list[str] = []
    worker = SimpleNamespace(
        xfer_stats=SimpleNamespace(record_kv_expired_req=lambda: failed.append("counted")),
        _recv_failures=set(),
        _handle_failed_transfer=lambda req_id, *_, **__: failed.append(req_id),
    )
    remote = SimpleNamespace(blocks_expiry_time=params["remote_blocks_expiry_time"])
    vllm_nixl.refuse_expired(lambda *_: pytest.fail("read freed blocks"), worker, "r", SimpleNamespace(remote=remote))
    assert failed == ["counted", "r"]


def test_a_lease_that_holds_is_read() -> None:
    params = handed_over(lease=30.0)
    vllm_nixl.note_expired(Scheduler(), SimpleNamespace(request_id="r", kv_transfer_params=params))
    assert params["remote_blocks_expiry_time"] is None
    meta = SimpleNamespace(remote=SimpleNamespace(blocks_expiry_time=None))
    assert vllm_nixl.refuse_expired(lambda *_: "read", None, "r", meta) == "read"


@pytest.mark.code("PD1038")
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_a_prefill_whose_numbers_are_others_is_refused(
    theta: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another rotary base by an override: no hash compares it, every byte count fits, and the answer would be wrong."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["tiny-llama"]))
    params: dict[str, Any] = {"do_remote_prefill": True, "remote_blocks_expiry_time": None}
    request = SimpleNamespace(request_id="r", kv_transfer_params=params)
    prefill = Scheduler(30.0, str(tmp_path), rope_theta=theta)
    vllm_nixl.add_expiry(lambda *_: (True, params), prefill, request, [])
    vllm_nixl.note_expired(Scheduler(0.0, str(tmp_path)), request)
    meta = SimpleNamespace(remote=SimpleNamespace(blocks_expiry_time=params["remote_blocks_expiry_time"]))
    if theta == CONFIGS["tiny-llama"]["rope_theta"]:
        assert vllm_nixl.refuse_expired(lambda *_: "read", None, "r", meta) == "read"
        return
    assert "PD1038" in caplog.text
    failed: list[str] = []
    worker = SimpleNamespace(
        xfer_stats=SimpleNamespace(record_kv_expired_req=lambda: pytest.fail("no lease ran out")),
        _recv_failures=set(),
        _handle_failed_transfer=lambda req_id, *_, **__: failed.append(req_id),
    )
    vllm_nixl.refuse_expired(lambda *_: pytest.fail("read other numbers"), worker, "r", meta)
    assert failed == ["r"]
    assert state.failing.pop("r").startswith("PD1038")


def test_what_the_engine_settled_is_what_is_derived(tmp_path: Path) -> None:
    """Settings and digests of the live manifest against those of the fleet file's flags, overrides included."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["tiny-llama"]))
    words = ["--hf-overrides", '{"rope_theta": 500000.0}', "--dtype", "float32", "-dcp", "2"]
    request = Request(engine="vllm", role="decode", config=CONFIGS["tiny-llama"], tp=2, page_size=128)
    derived = derive(apply(request, [*words, "--attention-backend", "FLASH_ATTN"])).manifest
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype="torch.float32"),
        parallel_config=SimpleNamespace(decode_context_parallel_size=2, prefill_context_parallel_size=1),
        kv_transfer_config=SimpleNamespace(kv_role="kv_consumer", kv_connector="MultiConnector"),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
    )
    worker = SimpleNamespace(_TRANSFER_MODE="pull", backend_name="FLASH_ATTN", enforce_compat_hash=True)
    settings = stated.of_vllm(config, worker)
    model = stated.model("m", "llama", str(tmp_path), {"rope_theta": 500000.0})
    assert isinstance(derived.settings, dict)
    assert {name: settings[name] for name in settings if name != "kv_role"} == derived.settings
    assert (model.config_digest, model.values_digest) == (derived.model.config_digest, derived.model.values_digest)
    assert settings["kv_role"] == "decode"
    assert stated.model("m", "llama", str(tmp_path), lambda config: config).values_digest is UNSET


def test_a_peer_states_nothing_that_it_did_not_say() -> None:
    """The hash has compared a part of this side's settings; its role is not the peer's."""
    own = replace(llama(), settings={"kv_role": "decode", "dtype": "float32"})
    assert of_peer(metadata(128), own, 1).settings is UNSET


def test_a_peer_without_the_plugin_sends_no_deadline_and_is_read() -> None:
    params = {"do_remote_prefill": True}
    vllm_nixl.note_expired(Scheduler(), SimpleNamespace(request_id="r", kv_transfer_params=params))
    assert "remote_blocks_expiry_time" not in params


def test_names_of_layers_and_layouts() -> None:
    assert layer_of("language_model.model.layers.11.linear_attn") == 11
    assert layer_of("model.embed_tokens") is None
    assert [layout_name(name) for name in ("NHD", "HND", "LBNHC", "LBHNC", "BHLNC")] == [
        "nhd",
        "hnd",
        "nhd",
        "hnd",
        "hnd",
    ]
