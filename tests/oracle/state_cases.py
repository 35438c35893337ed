"""The cases on which what the core moves is held against what SGLang's own code moves: the dumps' models, cut over
attention TP 1, 2, 4 and 8 both ways, and over pipeline stages where there are dumps of stages.

A dump says what one rank of one size registers; other sizes have the item lengths of the derived layout, which equals
every dump, and the dump's facts that do not depend on the size.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from pdctl.errors import ConfigError
from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.algebra import local_units
from pdctl_transfer.layout.manifest import Entry, Manifest, Stage
from tests.oracle.test_oracle_dumps import DATA, derived, expand, read

TPS = (1, 2, 4, 8)
MODELS = {
    "llama31_70b": "llama31_70b_tp4_page64_bf16",
    "llama31_70b mxfp8": "llama31_70b_tp4_page128_mxfp8",
    "llama31_70b eagle3": "llama31_70b_tp4_page64_bf16_pp1of1_eagle3",
    "llama31_70b fp4": "llama31_70b_tp4_page64_fp4mx",
    "gemma3_27b": "gemma3_27b_tp4_page64_bf16",
    "hunyuan_large": "hunyuan_large_tp4_page64_bf16",
    "nemotron_nas": "nemotron_nas_tp4_page64_bf16",
    "gpt_oss_120b": "gpt_oss_120b_tp4_page64_bf16",
    "gpt_oss_120b mxfp8": "gpt_oss_120b_tp2_page128_mxfp8",
    "minimax_m3_sparse": "minimax_m3_sparse_tp4_page64_bf16",
    "deepseek_v3": "deepseek_v3_tp4_page64_bf16",
    "deepseek_v3 mtp": "deepseek_v3_tp4_page64_bf16_pp1of1_mtp",
    "deepseek_v3 fp4": "deepseek_v3_tp2_page64_fp4mx",
    "deepseek_v32": "deepseek_v32_tp4_page64_bf16",
    "longcat_flash": "longcat_flash_tp4_page64_bf16",
    "deepseek_v4_flash": "deepseek_v4_flash_tp1_page256_fp8e4m3",
    "deepseek_v4_flash mtp": "deepseek_v4_flash_tp4_page256_fp8e4m3_pp1of1_mtp",
    "deepseek_v4_flash dspark": "deepseek_v4_flash_dspark_tp4_page256_fp8e4m3",
    "qwen3_next_80b": "qwen3_next_80b_tp4_page64_bf16",
    "qwen3_next_80b mtp": "qwen3_next_80b_tp4_page64_bf16_pp1of1_mtp",
    "qwen35_397b_a17b": "qwen35_397b_a17b_tp4_page64_bf16",
    "qwen4_exp_flash_next": "qwen4_exp_flash_next_tp4_page64_bf16",
    "qwen4_exp_flash_next mtp": "qwen4_exp_flash_next_tp4_page64_bf16_pp1of1_mtp",
    "kimi_linear_48b": "kimi_linear_48b_tp4_page64_bf16",
    "kimi_k3": "kimi_k3_tp8_page64_bf16",
    "ling_25_1t": "ling_25_1t_tp4_page64_bf16",
    "nemotron3_nano_30b": "nemotron3_nano_30b_tp4_page64_bf16",
    "falcon_h1_34b": "falcon_h1_34b_tp1_page64_bf16",
    "lfm2_1b": "lfm2_1b_tp4_page1_bf16",
}
STAGED = ("llama31_70b", "deepseek_v3", "deepseek_v32", "gpt_oss_120b", "kimi_linear_48b", "nemotron3_nano_30b")
STAGED += ("qwen35_397b_a17b", "qwen4_exp_flash_next", "minimax_m3_sparse")
PP_TPS = ((4, 4), (2, 4), (4, 2), (1, 4))
PAGES = ([5, 1, 2, 6], [0, 4, 5, 2])
ROW = ([3], [6])


class Size(NamedTuple):
    """Attention TP and pipeline stages of both sides."""

    prefill: int
    decode: int
    prefill_pp: int = 1
    decode_pp: int = 1

    def __str__(self) -> str:
        stages = "" if self.prefill_pp == 1 else f" pp {self.prefill_pp} to {self.decode_pp}"
        return f"tp {self.prefill} to {self.decode}{stages}"


def sizes(model: str) -> list[Size]:
    """Of a model: every pair of TPs that its heads allow, and some with stages."""
    pairs = [Size(*pair) for pair in product(TPS, repeat=2)]
    if model in STAGED:
        pairs += [Size(*tps, 2, pp) for pp in (1, 2) for tps in PP_TPS]
    return [size for size in pairs if _exists(model, size)]


def _exists(model: str, size: Size) -> bool:
    try:
        side(model, "prefill", size.prefill, size.prefill_pp)
        side(model, "decode", size.decode, size.decode_pp)
    except (ConfigError, TransferError):  # no engine starts so
        return False
    return True


@cache
def dump_of(model: str, pp: int = 1, stage: int = 0) -> dict[str, Any]:
    """The dump of a model, or of one of its stages."""
    stem = MODELS[model]
    exact = DATA / "sglang" / f"{stem}.json"
    return read(exact if exact.exists() else DATA / "sglang" / f"{stem}_pp{stage + 1}of{pp}.json")


@cache
def manifest(model: str, role: str, tp: int, pp: int = 1) -> Manifest:
    """The layout of one side."""
    return derived(dump_of(model), role=role, tp=tp, pp=pp)


@cache
def side(model: str, role: str, tp: int, pp: int = 1) -> dict[str, Any]:
    """One side, as `painted.py` and the engine's script take it."""
    made = manifest(model, role, tp, pp)
    stages = [_stage(model, made, stage, tp) for stage in made.stages]
    latent = dump_of(model)["pool"].startswith(("MLA", "DSA", "DeepSeekV4"))
    return {"tp": tp, "page_size": made.page_size, "mla": latent, "stages": stages}


def _stage(model: str, made: Manifest, stage: Stage, tp: int) -> dict[str, Any]:
    dump = dump_of(model, len(made.stages), stage.pp_rank)
    entries = [
        {"kind": name[0], "component": number, "key": keys(model)[name], **_shape(entry)}
        for name, number, entry in named(stage)
    ]
    return {
        "entries": entries,
        "kinds": [component.kind for component in stage.components],
        "facts": facts(dump, made, stage, tp),
    }


Name = tuple[str, int | None, str, int]


@cache
def keys(model: str) -> dict[Name, int]:
    """A number for the name of each of a model's entries: the same on both sides and in every stage."""
    (stage,) = manifest(model, "decode", dump_of(model)["tp"]).stages
    return {name: number for number, (name, _, _) in enumerate(named(stage), 1)}


def named(stage: Stage) -> Iterator[tuple[Name, int, Entry]]:
    """A stage's entries in order, by kind, layer, tensor and how many of that name come before; each with the number of
    its component."""
    seen: Counter[tuple[str, int | None, str]] = Counter()
    for number, component in enumerate(stage.components):
        for entry in component.entries:
            name = component.kind, entry.layer, entry.tensor
            yield (*name, seen[name]), number, entry
            seen[name] += 1


def _shape(entry: Entry) -> dict[str, Any]:
    return {
        "sharding": entry.sharding,
        "outer": entry.outer,
        "groups": [[group.heads, group.width] for group in entry.groups],
        "inner": entry.inner_bytes,
        "item_len": entry.item_len,
    }


def facts(dump: dict[str, Any], made: Manifest, stage: Stage, tp: int) -> dict[str, Any]:
    """What SGLang's KVArgs say beside buffers, at this TP: names of its attributes and their values."""
    said, layers = dump["kvargs"], made.stages[-1].layers[1]
    by_kind = {c.kind: c for c in stage.components}
    states = [c for c in stage.components if c.kind != "kv"]
    kv = by_kind["kv"].entries if "kv" in by_kind else ()
    wire = [bool(ids) for ids in said["state_layer_ids"]]
    shards = [_shards(said, place, component.entries, tp) for place, component in enumerate(states)]
    heads = sum(group.heads for group in kv[0].groups) if kv and kv[0].sharding == "split" else 0
    whole = len(made.stages) == 1
    return {
        "kv_layer_ids": [entry.layer for entry in kv] if said["kv_layer_ids"] else [],
        "state_layer_ids": [[e.layer for e in c.entries] if ids else [] for c, ids in zip(states, wire, strict=True)],
        "state_dim_per_tensor": [dims for dims, _, _ in shards],
        "state_slice_outer_counts": [outer for _, outer, _ in shards],
        "state_conv_shard_groups": [groups for _, _, groups in shards],
        "is_hybrid_mla_backend": "mamba" in by_kind and bool(kv) and kv[0].tensor == "latent",
        "swa_kv_cache_layout": "nhd" if dump["pool"] == "SWAKVPool" else None,
        "kv_head_num": max(1, heads // tp),
        "total_kv_head_num": heads,
        "prefill_start_layer": dump["start_layer"] if not whole else stage.layers[0],
        "prefill_end_layer": stage.layers[1],
        "num_draft_entries": sum(entry.layer is not None and entry.layer >= layers for entry in kv),
        "mla_compression_ratios": said.get("mla_compression_ratios"),
    }


def _shards(said: dict[str, Any], place: int, entries: tuple[Entry, ...], tp: int) -> tuple[list[Any], ...]:
    """Of a state component: local channels, rows before them, and sub-blocks, by entry; empty where none are said."""
    if not said["state_dim_per_tensor"][place]:
        return [], [], []
    dims, outers, groups = (
        expand(said[f"state_{what}"][place]) for what in ("dim_per_tensor", "slice_outer_counts", "conv_shard_groups")
    )
    local = [local_units(e, tp) if dim else 0 for e, dim in zip(entries, dims, strict=True)]
    return local, outers, groups


def ids(model: str, role: str) -> dict[str, list[int]]:
    """The request's items on a side, by kind; runs among them, and none at the same place on both."""
    which = 0 if role == "prefill" else 1
    made = manifest(model, role, dump_of(model)["tp"])
    found = {
        component.kind: (PAGES if component.index_space == "page" else ROW)[which]
        for component in made.stages[0].components
    }
    return {"kv": PAGES[which], **found}


def case(model: str, size: Size) -> dict[str, Any]:
    """A case, as the engine's script takes it."""
    return {
        "prefill": side(model, "prefill", size.prefill, size.prefill_pp),
        "decode": side(model, "decode", size.decode, size.decode_pp),
        "ids": ids(model, "prefill"),
        "there": ids(model, "decode"),
    }


def all_cases() -> list[tuple[str, Size]]:
    """Every model at every size, in order."""
    return [(model, size) for model in MODELS for size in sizes(model)]
