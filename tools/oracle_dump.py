"""Ask SGLang's own code what it registers for a transfer: run in an environment that has SGLang, on a CPU.

    ENV/bin/python tools/oracle_dump.py CONFIG.json OUT.json [--facts hopper|sm100] [-- SGLANG FLAGS]

The engine's argument resolution, its pool construction (`KVCacheConfigurator`) and its `_init_kv_manager` run as they
are; only the machine's facts are said, the pools are small and lie in host memory, no weights are loaded, and the
transfer's manager is replaced by one that keeps what it is given. No length, shape or layer id is computed here.
`tests/oracle` compares derived layouts with what this writes.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from oracle_buffers import kvargs, runs

FACTS = {
    "hopper": {"is_sm90": True, "is_sm100": False, "device_sm": 90, "device_capability": (9, 0)},
    "sm100": {"is_sm90": False, "is_sm100": True, "device_sm": 100, "device_capability": (10, 0)},
}
#: The small pools: tokens, requests.
TOKENS, REQUESTS = 1024, 2


def main() -> None:
    """One dump of each pipeline stage of one side: OUT.json, or OUT_ppIofN.json where there are several."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--facts", choices=FACTS, default="hopper")
    asked = parser.parse_args(sys.argv[1:split])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_bytes(asked.config.read_bytes())
        for stage, dump in enumerate(dumps(folder, asked.facts, sys.argv[split + 1 :])):
            name = asked.out.stem + (f"_pp{stage + 1}of{dump['pp']}" if dump["pp"] > 1 else "")
            said = {"model": asked.config.stem, "facts": asked.facts, **dump}
            asked.out.with_name(f"{name}.json").write_text(json.dumps(said) + "\n", encoding="utf-8")


def dumps(folder: str, facts: str, flags: list[str]) -> list[dict[str, Any]]:
    """What each pipeline stage's first rank registers."""
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, override_platform, publish
    from sglang.srt.server_args import prepare_server_args

    override_platform(
        is_cuda=True,
        is_hip=False,
        is_npu=False,
        is_sm120=False,
        is_blackwell=facts == "sm100",
        is_hopper_with_cuda_12_3=facts == "hopper",
        has_flashinfer=False,
        **FACTS[facts],
    ).install()
    fixed = ["--model-path", folder, "--device", "cuda", "--load-format", "dummy", "--skip-tokenizer-init"]
    small = ["--max-total-tokens", str(TOKENS), "--mem-fraction-static", "0.8", "--max-mamba-cache-size", str(REQUESTS)]
    variables = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
    found = []
    with _seen_as(facts):
        args = prepare_server_args([*fixed, *small, *flags])
        publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
        parallel = get_parallel()
        for stage in range(parallel.pp_size):
            publish(args, role="scheduler", ranks=SpawnRanks(world_rank=stage * parallel.tp_size, gpu_id=0))
            found.append({"flags": flags, "variables": variables, **_stage(args, flags)})
    return found


@contextmanager
def _seen_as(facts: str) -> Iterator[None]:
    """Answers what the engine asks of torch and not of its own facts; no kernel is warmed up.

    That a device is there is said only where DeepSeek-V4's layout is chosen by it.
    """
    import torch
    from sglang.srt.mem_cache import kv_cache_configurator, memory_pool

    choose = kv_cache_configurator.select_dsv4_kv_layout

    def told() -> Any:
        there = mock.patch.object(torch.cuda, "is_available", return_value=True)
        with there, mock.patch.object(torch.version, "cuda", "13.0"):
            return choose()

    with ExitStack() as stack:
        capability = FACTS[facts]["device_capability"]
        stack.enter_context(mock.patch.object(torch.cuda, "get_device_capability", return_value=capability))
        stack.enter_context(mock.patch.object(kv_cache_configurator, "select_dsv4_kv_layout", told))
        stack.enter_context(mock.patch.object(memory_pool, "copy_all_layer_kv_cache_func"))
        yield


def _stage(args: Any, flags: list[str]) -> dict[str, Any]:
    """The target's pool, the draft's beside it on the last stage, and what the manager is given."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.disaggregation import decode, prefill
    from sglang.srt.runtime_context import get_disagg, get_parallel, get_schedule
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    parallel = get_parallel()
    spec = SpeculativeAlgorithm.from_string(args_of("speculative_algorithm"))
    config = ModelConfig.from_server_args(args)
    target, result = _pools(args, config, spec, None)
    draft = None
    if not spec.is_none() and parallel.pp_rank == parallel.pp_size - 1 and _has_pool(spec):
        draft_config = ModelConfig.from_server_args(
            args, model_path=args_of("speculative_draft_model_path") or args.model_path, is_draft_model=True
        )
        _, draft = _pools(args, draft_config, spec, (target, result))
    decodes = get_disagg().disaggregation_mode == "decode"
    module, holder = (decode, decode.DecodePreallocQueue) if decodes else (prefill, prefill.PrefillBootstrapQueue)
    scheduler = SimpleNamespace(
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(kv_cache_dtype_str=target.kv_cache_dtype_str)),
        model_config=config,
        req_to_token_pool=result.req_to_token_pool,
        rust_server=None,
        server_args=args,
        enable_hisparse=False,
    )
    pool = result.token_to_kv_pool
    queue = SimpleNamespace(
        token_to_kv_pool=pool,
        draft_token_to_kv_pool=draft.token_to_kv_pool if draft else None,
        tp_rank=parallel.tp_rank,
        pp_rank=parallel.pp_rank,
        transfer_backend=module.TransferBackend.MOONCAKE,
        is_mla_backend=prefill.is_mla_backend(pool),
        metadata_buffers=SimpleNamespace(get_buf_infos=lambda: ([], [], [])),
        scheduler=scheduler,
        enable_staging=False,
        req_to_token_pool=result.req_to_token_pool,
    )
    args_class = module.get_kv_class(queue.transfer_backend, module.KVClassType.KVARGS)
    given: list[Any] = []

    def stand_in(_: Any, kind: Any) -> Any:
        """The engine's own arguments; its manager keeps what it is given."""
        return args_class if kind == module.KVClassType.KVARGS else lambda kv_args, *_, **__: given.append(kv_args)

    with mock.patch.object(module, "get_kv_class", stand_in):
        holder._init_kv_manager(queue)
    asked = flags[flags.index("--page-size") + 1] if "--page-size" in flags else None
    return {
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "pp_rank": parallel.pp_rank,
        "requested_page_size": int(asked) if asked else get_schedule().page_size,
        "page_size": given[0].page_size,
        "kv_cache_dtype": given[0].kv_cache_dtype_str,
        "kv_layout": given[0].kv_layout,
        "role": get_disagg().disaggregation_mode,
        "architecture": config.hf_config.architectures[0],
        "pool": type(pool).__name__,
        "start_layer": target.layer_info.start_layer,
        "end_layer": target.layer_info.end_layer,
        "draft": draft is not None,
        "kvargs": kvargs(given[0]),
        "tensors": list(runs(given[0], pool, draft and draft.token_to_kv_pool, result.req_to_token_pool)),
    }


def args_of(name: str) -> Any:
    """A resolved argument of speculation."""
    from sglang.srt.runtime_context import get_spec

    return getattr(get_spec(), name)


def _has_pool(spec: Any) -> bool:
    return bool(not spec.is_ngram())


def _pools(args: Any, config: Any, spec: Any, target: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """The engine's configurator and the pools that it makes: the target's, or a draft's beside `target`."""
    from sglang.srt.configs.model_config import AttentionArch
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
    from sglang.srt.mem_cache.kv_cache_dtype import configure_kv_cache_dtype
    from sglang.srt.model_executor.model_runner_components.layer_setup import resolve_layer_indices
    from sglang.srt.model_executor.model_runner_components.spec_aux_hidden_state import SpecAuxHiddenStateConfig
    from sglang.srt.model_executor.pool_configurator import MemoryPoolConfig
    from sglang.srt.runtime_context import get_model, get_parallel, get_schedule

    parallel, is_draft = get_parallel(), target is not None
    model = _model(config, is_draft)
    word, dtype = configure_kv_cache_dtype(
        server_args_kv_cache_dtype=get_model().kv_cache_dtype,
        model=model,
        model_dtype=config.dtype,
        is_draft_worker=is_draft,
        is_dflash=False,
        speculative_draft_attention_backend=None,
    )
    made = KVCacheConfigurator(
        device="cpu",
        gpu_id=0,
        attn_dp_size=parallel.attn_dp_size,
        pp_size=parallel.pp_size,
        pp_group=SimpleNamespace(
            world_size=parallel.pp_size,
            rank_in_group=parallel.pp_rank,
            is_last_rank=parallel.pp_rank == parallel.pp_size - 1,
        ),
        model=model,
        model_config=config,
        server_args=args,
        kv_cache_dtype=dtype,
        kv_cache_dtype_str=word or get_model().kv_cache_dtype,
        model_dtype=config.dtype,
        page_size=get_schedule().page_size,
        sliding_window_size=config.sliding_window_size,
        spec_algorithm=spec,
        is_draft_worker=is_draft,
        post_capture_kv_active=False,
        spec_aux_config=SpecAuxHiddenStateConfig(),
        is_hybrid_swa=config.is_hybrid_swa,
        is_hybrid_swa_compress=config.is_hybrid_swa_compress,
        use_mla_backend=config.attention_arch == AttentionArch.MLA,
        layer_info=resolve_layer_indices(model=model, model_config=config, is_draft_worker=is_draft),
        forward_stream=None,
        req_to_token_pool=target[1].req_to_token_pool if target else None,
        token_to_kv_pool_allocator=target[1].token_to_kv_pool_allocator if target else None,
        memory_pool_config=None,
    )
    sizes = made._derive_pool_sizes(
        config=MemoryPoolConfig(
            max_total_num_tokens=TOKENS,
            max_running_requests=REQUESTS,
            full_max_total_num_tokens=TOKENS,
            swa_max_total_num_tokens=TOKENS,
            c4_max_total_num_tokens=TOKENS // 4,
            c128_max_total_num_tokens=TOKENS // 128,
        )
    )
    pools = made._init_pools(
        sizes=sizes,
        req_to_token_pool=made.req_to_token_pool,
        token_to_kv_pool_allocator=made.token_to_kv_pool_allocator,
    )
    return made, pools


def _model(config: Any, is_draft: bool) -> Any:
    """A stand-in for the model: no weights, but the stage's layers where the class of that name exposes them."""
    import inspect

    from sglang.srt.distributed.utils import get_pp_indices
    from sglang.srt.models.registry import ModelRegistry
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.speculative.dspark_components.dspark_config import parse_dspark_draft_config

    cls, _ = ModelRegistry.resolve_model_cls(config.hf_config.architectures)
    sources = "".join(inspect.getsource(one) for one in cls.__mro__ if one.__module__.startswith("sglang"))
    exposes = "def start_layer" in sources or "self.start_layer =" in sources
    model = SimpleNamespace(quant_config=None)
    if exposes and not is_draft:
        parallel = get_parallel()
        layers = get_pp_indices(config.num_hidden_layers, parallel.pp_rank, parallel.pp_size)
        model.start_layer, model.end_layer = layers
    if is_draft and config.hf_config.architectures[0].endswith("DSpark"):
        ids = parse_dspark_draft_config(draft_hf_config=config.hf_config).target_layer_ids
        model.num_stages = len(ids) if ids is not None else config.num_nextn_predict_layers
    return model


if __name__ == "__main__":
    main()
