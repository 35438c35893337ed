"""Stand-ins for a vLLM engine: its cache config and tensors as it makes them, requests, and a step of scheduler and
workers. The real ones are in tests/engines."""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pdctl.engines.builtin_models import CONFIGS
from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins import vllm_core_worker
from pdctl_transfer.plugins.vllm_core_ids import kinds
from pdctl_transfer.plugins.vllm_core_scheduler import CoreScheduler
from pdctl_transfer.plugins.vllm_core_settings import Settings
from pdctl_transfer.plugins.vllm_core_worker import CoreWorker, Ended
from pdctl_transfer.session import Rank, Registry

HEADS, WIDTH, TOKENS = 2, 8, 32
"""KV heads of the model, elements of K and V of one, tokens of a block."""
BLOCKS = 12


class FullAttentionSpec(SimpleNamespace):
    """By its name, as the connector knows it."""


class SlidingWindowSpec(SimpleNamespace):
    """The same."""


class MambaSpec(SimpleNamespace):
    """The same."""


def attention(heads: int, page: int = 0, window: int | None = None) -> Any:
    size = heads * TOKENS * WIDTH * 4
    kind = SlidingWindowSpec if window else FullAttentionSpec
    return kind(
        block_size=TOKENS,
        num_kv_heads=heads,
        real_page_size_bytes=size,
        page_size_bytes=page or size,
        sliding_window=window,
    )


def delta_net(tp: int, page: int, *, taps_first: bool) -> Any:
    """Two key heads and four value heads of 128, as the built-in hybrid's; a window of three taps, in either order."""
    channels = (2 * 2 + 4) * 128 // tp
    return MambaSpec(
        block_size=TOKENS * 64,
        shapes=((3, channels) if taps_first else (channels, 3), (4 // tp, 128, 128)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_bytes=page,
        num_speculative_blocks=0,
    )


def group(layers: Sequence[int], spec: Any) -> SimpleNamespace:
    return SimpleNamespace(layer_names=[f"model.layers.{one}.mixer" for one in layers], kv_cache_spec=spec)


def caches(groups: Sequence[Any], ratio: int = 1, blocks: int = BLOCKS) -> dict[str, torch.Tensor]:
    """A tensor a layer, [blocks · ratio, heads, tokens, K and V], pages of all groups over each other in one
    allocation. ratio: blocks of the attention's kernels in one of the scheduler's."""
    page = max(int(one.kv_cache_spec.page_size_bytes) for one in groups)
    layers = max(len(one.layer_names) for one in groups)
    raw = torch.zeros(layers * blocks * page, dtype=torch.int8)
    found = {}
    for one in groups:
        spec = one.kv_cache_spec
        for number, name in enumerate(one.layer_names):
            at = raw[number * blocks * page : (number + 1) * blocks * page]
            if isinstance(spec, MambaSpec):
                found[name] = at.view(blocks, 1, 1, page)
                continue
            heads, tokens = spec.num_kv_heads, TOKENS // ratio
            strides = (page // 4 // ratio, tokens * WIDTH, WIDTH, 1)
            found[name] = at.view(torch.float32).as_strided(
                (blocks * ratio, heads, tokens, WIDTH), strides, at.storage_offset() // 4
            )
    return found


def request(name: str, tokens: int, **params: Any) -> Any:
    prompt = list(range(tokens))
    return SimpleNamespace(
        request_id=name,
        kv_transfer_params=params,
        prompt_token_ids=prompt,
        prompt_embeds=None,
        _all_token_ids=list(prompt),
        num_prompt_tokens=tokens,
        num_computed_tokens=tokens,
        max_tokens=16,
        status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
        get_skip_reading_prefix_cache=lambda: False,
    )


class Engine:
    """The scheduler's half of the connector and its workers', in one process, over memory."""

    def __init__(self, role: str, groups: Sequence[Sequence[Any]], ratio: int = 1, model: str = "tiny-llama") -> None:
        """`groups` of each worker, by tensor parallel rank."""
        self.tp, producer = len(groups), role == "kv_producer"
        self.registry = Registry() if producer else None
        where = ("127.0.0.1", self.registry.port) if self.registry else None
        understood = kinds(groups[0])
        recurrent = any(one.recurrent for one in understood)
        self.scheduler = CoreScheduler(understood, tuple, int(recurrent), where)
        self.dropped: list[str] = []
        self._said: Counter[tuple[str, str]] = Counter()
        self.caches, self.workers = [], []
        for tp, mine in enumerate(groups):
            worker = SimpleNamespace(
                vllm_config=_config(role, self.tp, model),
                use_mla=False,
                tp_rank=tp,
                kv_cache_config=SimpleNamespace(kv_cache_groups=mine),
            )
            settings = Settings(session={"bootstrap_s": 20.0})
            one = CoreWorker(settings, kinds(mine), Rank(0, tp), worker, self.dropped.append)
            self.caches.append(caches(mine, ratio))
            one.register(self.caches[-1], mine, BLOCKS)
            self.workers.append(one)

    def step(self, taken: Sequence[str] = (), lapsed: Sequence[str] = ()) -> list[Ended]:
        orders = self.scheduler.orders()
        for worker in self.workers:
            worker.follow(orders)
        found = [worker.ended(taken, lapsed) for worker in self.workers]
        self.scheduler.done(self._by_all("sent", found), self._by_all("received", found))
        return found

    def _by_all(self, what: str, found: Sequence[Ended]) -> set[str]:
        """What all workers have said by now, as vLLM's aggregator counts."""
        for one in found:
            self._said.update((what, request) for request in getattr(one, what))
        over = {request for (kind, request), count in self._said.items() if kind == what and count == self.tp}
        for request in over:
            del self._said[what, request]
        return over

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        if self.registry is not None:
            self.registry.close()


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over memory, in a process that has no vLLM."""
    monkeypatch.setattr(vllm_core_worker, "_fabric", lambda *_: MemoryFabric())
    monkeypatch.setattr(plugin, "_version", lambda: "0.32.0")


def _config(role: str, tp: int, model: str) -> SimpleNamespace:
    text = CONFIGS[model]
    parallel = SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=1, data_parallel_size=1)
    layers = (0, int(text["num_hidden_layers"]))
    return SimpleNamespace(
        model_config=SimpleNamespace(
            served_model_name=model,
            model="nowhere",
            hf_overrides=None,
            hf_text_config=SimpleNamespace(to_dict=lambda: dict(text)),
            get_layers_start_end_indices=lambda _: layers,
            get_total_num_kv_heads=lambda: HEADS,
            dtype="torch.float32",
        ),
        parallel_config=parallel,
        cache_config=SimpleNamespace(
            block_size=TOKENS,
            cache_dtype="auto",
            get_resolved_kv_cache_layout=lambda: SimpleNamespace(name="LBHNC"),
        ),
        kv_transfer_config=SimpleNamespace(kv_role=role, kv_connector="PdctlConnector"),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
    )
