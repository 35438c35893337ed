"""Dumps of what vLLM 0.32 registers for a transfer, made by its own code on a CPU.

    ENV/bin/python tools/vllm_oracle.py CONFIGS OUT [PART OF A NAME]

ENV is an environment with vLLM (tools/engine_envs.py), CONFIGS has a folder with a config.json for each model.

Each case in a process of its own: the engine's arguments are resolved, the model's class is built on the meta device,
its layers are asked for their KVCacheSpecs, block size, layout, groups and allocation are the engine's, and the NIXL
worker registers the caches. No size is computed here.

What is told and not found: the platform (CUDA, of the case's capability), ranks and their groups, an agent that keeps
what it is given. Left out, for nothing of it shapes a cache: experts, and compiled modules, Triton and FlashInfer,
whose names stand for nothing (`Nothing`).
"""

import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Any, Final
from unittest import mock

from vllm_pretend import Group, prepare, pretend

BLOCKS: Final = {True: 64, False: 640}
"""By whether blocks are those of a hybrid model, which hold many tokens."""
#: What is kept of a cache: the class of its spec, tokens a block, bytes of a page and of each state in it.
FACTS: Final = ["spec", "block", "page", "states"]
GROUPS: Final = ("_WORLD", "_TP", "_PP", "_DP", "_EP", "_PCP", "_DCP", "_EPLB", "_ETP")
#: Keys of a config that no cache depends on and a class asks for all the same, by model type.
FILLED: Final[dict[str, dict[str, Any]]] = {
    "deepseek_v4": {
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 6,
        "max_position_embeddings": 65536,
        "rope_theta": 10000,
        "scoring_func": "sqrtsoftplus",
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
        "expert_dtype": "fp4",
    }
}


def cases() -> list[dict[str, Any]]:
    """What is dumped: a model, sizes, and engine arguments."""
    made: list[dict[str, Any]] = []
    dense = ("llama31_70b", "gpt_oss_120b", "gemma3_27b", "deepseek_v3", "deepseek_v32", "minimax_m3_sparse")
    hybrid = ("qwen3_next_80b", "qwen35_397b_a17b", "kimi_linear_48b", "nemotron3_nano_30b", "qwen4_exp_flash_next")
    for model in (*dense, *hybrid, "deepseek_v4_flash"):
        made += [{"model": model, "tp": tp} for tp in (1, 4)]
    made += [{"model": model, "tp": 8} for model in ("minimax_m3_sparse", "deepseek_v4_flash", "qwen4_exp_flash_next")]
    for model in ("llama31_70b", "gpt_oss_120b", "deepseek_v3", "deepseek_v4_flash"):
        push = {"connector": "NixlPushConnector", "pp": 2}
        made += [{"model": model, "tp": 4, **push, "pp_rank": rank} for rank in (0, 1)]
    fp8 = {"kv_cache_dtype": "fp8"}
    made += [{"model": model, "tp": 4, "args": fp8} for model in ("llama31_70b", "minimax_m3_sparse")]
    index = {"attention_config": {"indexer_kv_dtype": "fp8"}}
    made.append({"model": "minimax_m3_sparse", "tp": 4, "args": {**fp8, **index, "block_size": 256}})
    nvfp4 = {"kv_cache_dtype": "nvfp4", "attention_config": {"backend": "FLASHINFER"}}
    made += [{"model": "llama31_70b", "tp": tp, "args": nvfp4} for tp in (1, 4)]
    v4, mxfp4 = {"model": "deepseek_v4_flash", "tp": 4, "sm": 100}, {"attention_config": {"indexer_kv_dtype": "mxfp4"}}
    made.append({**v4, "args": mxfp4})
    plain = {"attention_config": {"backend": "FLASHINFER_MLA_SPARSE_DSV4"}}
    made += [{**v4, "args": {**plain, **more}} for more in ({}, fp8)]
    return made


def resolve(case: dict[str, Any], folder: Path, platform: Any) -> Any:
    """The engine's config of the case, its model built on the meta device."""
    import torch
    import vllm.distributed.parallel_state as groups
    from vllm.config import KVTransferConfig, set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.v1.worker.workspace import init_workspace_manager

    tp, pp, rank = case["tp"], case["pp"], case["pp_rank"]
    config = EngineArgs(
        model=str(folder),
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        kv_transfer_config=KVTransferConfig(kv_connector=case["connector"], kv_role="kv_producer"),
        distributed_executor_backend="mp",
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_num_seqs=8,
        max_model_len=512,
        max_num_batched_tokens=512,
        **case["args"],
    ).create_engine_config()
    config.parallel_config.rank = rank * tp
    sizes = {"_WORLD": (rank * tp, tp * pp), "_TP": (0, tp), "_PP": (rank, pp), "_EP": (0, tp), "_ETP": (0, tp)}
    for name in GROUPS:
        setattr(groups, name, Group(*sizes.get(name, (0, 1))))
    platform.device_type = "meta"
    init_workspace_manager(torch.device("meta"))
    with set_current_vllm_config(config), torch.device("meta"):
        torch.set_default_dtype(config.model_config.dtype)
        initialize_model(config)
        torch.set_default_dtype(torch.float32)
    platform.device_type = "cuda"
    platform().update_block_size_for_backend(config)
    return config


def register(case: dict[str, Any], config: Any) -> dict[str, Any]:
    """Groups, allocation and regions, by the engine's functions in the order in which it calls them."""
    import torch
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core.kv_cache_utils import _get_per_layer_spec, get_kv_cache_configs
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec
    from vllm.v1.worker.utils import AttentionGroup, allocate_kv_cache, prepare_kernel_block_sizes

    specs = get_kv_cache_spec(config)
    backends = {
        name: layer.get_attn_backend()
        for name, layer in get_layers_from_vllm_config(config, AttentionLayerBase).items()
    }
    distinct = list(dict.fromkeys(backends.values()))
    supported = [[layout.name for layout in get_supported_kv_cache_layouts(distinct)]]
    layout = resolve_kv_cache_layout(config, supported, specs.values())
    config.cache_config.num_gpu_blocks_override = BLOCKS[config.model_config.is_hybrid]
    (kv,) = get_kv_cache_configs(config, [specs], [1 << 40])
    kv.kv_cache_layout = layout.name
    by_layer = {name: _get_per_layer_spec(group, name) for group in kv.kv_cache_groups for name in group.layer_names}
    groups = [
        [AttentionGroup(backends[name], [name], by_layer[name], at) for name in group.layer_names]
        for at, group in enumerate(kv.kv_cache_groups)
    ]
    kernel_blocks = prepare_kernel_block_sizes(kv, groups)
    caches = allocate_kv_cache(kv, torch.device("cpu"), layout, kernel_blocks)
    worker = _worker(case, config, kv)
    worker.register_kv_caches(caches)
    regions = zip(
        worker.region_names,
        worker.block_len_per_layer,
        worker.block_stride_per_layer,
        worker.region_group_ids,
        worker._region_is_mla,
        strict=True,
    )
    return {
        "block_size": config.cache_config.block_size,
        "cache_dtype": config.cache_config.cache_dtype,
        "layout": layout.name,
        "backends": [backend.get_name() for backend in distinct],
        "kernel_block_sizes": kernel_blocks,
        "group_block_sizes": [group.kv_cache_spec.block_size for group in kv.kv_cache_groups],
        "group_layers": [len(group.layer_names) for group in kv.kv_cache_groups],
        "ssm_sizes": list(worker._mamba_ssm_size),
        "regions": _runs([(*_name(name), *rest) for name, *rest in regions], ["bytes", "stride", "group", "mla"]),
        "caches": _runs([(*_name(name), *_facts(spec)) for name, spec in by_layer.items()], FACTS),
    }


def _worker(case: dict[str, Any], config: Any, kv: Any) -> Any:
    import vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker as base
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

    base.NixlWrapper, base.nixl_agent_config = mock.MagicMock(), None
    base.NixlWrapper.return_value.get_agent_metadata.return_value = b""
    kind = NixlPushConnectorWorker if case["connector"] == "NixlPushConnector" else NixlPullConnectorWorker
    return kind(config, "engine", kv)


def _name(name: str) -> tuple[str, int]:
    """`model.layers.3.self_attn.attn` is cache `self_attn.attn` of layer 3."""
    found = re.search(r"layers\.(\d+)\.(.+)$", name)
    assert found, name
    return found[2], int(found[1])


def _facts(spec: Any) -> tuple[str, int, int, list[int]]:
    """Those that FACTS names."""
    from vllm.utils.torch_utils import get_dtype_size
    from vllm.v1.kv_cache_interface import MambaSpec

    states: list[int] = []
    if isinstance(spec, MambaSpec):
        for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True):
            elements = 1
            for extent in shape:
                elements *= extent
            states.append(elements * get_dtype_size(dtype))
    return type(spec).__name__, spec.block_size, spec.page_size_bytes, states


def _runs(rows: list[tuple[Any, ...]], keys: list[str]) -> list[dict[str, Any]]:
    """Caches of one name and shape on one line, with the list of their layers."""
    lines: dict[str, dict[str, Any]] = {}
    for name, layer, *facts in rows:
        line = {"name": name, **dict(zip(keys, facts, strict=True))}
        lines.setdefault(json.dumps(line), {**line, "layers": []})["layers"].append(layer)
    return list(lines.values())


def stem(case: dict[str, Any]) -> str:
    """The name of a case's dump."""
    words = [case["model"], f"tp{case['tp']}", f"sm{case['sm']}", f"pp{case['pp_rank'] + 1}of{case['pp']}"]
    flat = {**case["args"], **case["args"].get("attention_config", {})}
    words += [str(value).lower() for key, value in flat.items() if key != "attention_config"]
    return "_".join(words)


def config_folder(case: dict[str, Any], configs: Path, out: Path) -> Path:
    """The model's config as the class wants it: text alone, and with what it asks for beside the shapes."""
    read = json.loads((configs / case["model"] / "config.json").read_text())
    if read["model_type"] == "qwen4_exp":
        read = {**read["text_config"], "architectures": ["Qwen4ExpForCausalLM"]}
    folder = out / ".configs" / case["model"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**FILLED.get(read["model_type"], {}), **read}))
    return folder


def dump(case: dict[str, Any], configs: Path, out: Path, platform: Any) -> None:
    """Write one case's dump."""
    config = resolve(case, config_folder(case, configs, out), platform)
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        found = register(case, config)
    told = {key: case[key] for key in ("model", "tp", "pp", "pp_rank", "sm", "connector", "args")}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in {**told, **found}.items()]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (out / f"{stem(case)}.json").write_text(text.replace("}, {", "},\n  {"))


def in_child(work: Any) -> int:
    """Run in a process of its own; its exit status."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException:  # noqa: BLE001  a child that may not return says what it met
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def dump_all(sm: int, configs: Path, out: Path, wanted: str) -> None:
    """The cases of one capability. Raises RuntimeError naming those that failed."""
    platform = pretend(sm)
    prepare()
    failed = []
    for one in cases():
        case = {"sm": 90, "pp": 1, "pp_rank": 0, "connector": "NixlConnector", "args": {}, **one}
        if case["sm"] != sm or wanted not in stem(case) or (out / f"{stem(case)}.json").exists():
            continue
        if in_child(lambda case=case: dump(case, configs, out, platform)):
            failed.append(stem(case))
        print(stem(case), flush=True)
    if failed:
        raise RuntimeError(f"no dump of {', '.join(failed)}")


def main() -> int:
    """The worst exit status of both capabilities."""
    configs, out = Path(sys.argv[1]), Path(sys.argv[2])
    wanted = sys.argv[3] if len(sys.argv) > 3 else ""
    out.mkdir(parents=True, exist_ok=True)
    return max(in_child(lambda sm=sm: dump_all(sm, configs, out, wanted)) for sm in (90, 100))


if __name__ == "__main__":
    sys.exit(main())
