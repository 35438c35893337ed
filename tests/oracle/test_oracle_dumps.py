"""Every dump of what SGLang really registers equals the derived layout, entry by entry."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pdctl.derive import Request, derive
from pdctl.derive.flags import apply, apply_environment
from pdctl_transfer.layout.manifest import ROPE_RING_LAYER, Component, Manifest, Stage

DATA = Path(__file__).parents[1] / "data" / "oracle"
DUMPS = sorted((DATA / "sglang").glob("*.json"))
#: The oracle's names of tensors, as the contract names them.
TENSORS = {
    "conv0": "conv",
    "kv_latent": "latent",
    "index_k_with_scale": "index_k",
    "index_key_ring": "pending_k",
    "rope_position_ring": "rope_position",
    "compressed_index_k": "compressed_k",
    "full_kv_pool.kv_buffer": "latent",
    "mamba_pool.mamba_cache.conv": "conv",
    "mamba_pool.mamba_cache.temporal": "temporal",
    "kv_pools.4.kv_buffer": "latent",
    "kv_pools.128.kv_buffer": "latent",
    "index_pools.4.index_k_with_scale_buffer": "index_k",
    "swa_kv_pool.kv_buffer": "latent",
    "swa_valid_from": "valid_from",
    "compress_state_pools.kv_score_buffer.kv_score": "state",
    "indexer_compress_state_pools.kv_score_buffer.kv_score": "index_state",
}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def derived(dump: dict[str, Any], **changes: Any) -> Manifest:
    asked: dict[str, Any] = {
        "engine": "sglang",
        "role": dump["role"],
        "config": read(DATA / "configs" / f"{dump['model']}.json"),
        "tp": dump["tp"],
        "pp": dump["pp"],
        "page_size": dump["requested_page_size"],
        "kv_cache_dtype": dump["kv_cache_dtype"],
        "speculative": _speculative(dump),
        "platform": dump.get("facts"),
    }
    request = apply_environment(Request(**asked), dump.get("variables", {}))
    return derive(replace(apply(request, dump.get("flags", [])), **changes)).manifest


def _speculative(dump: dict[str, Any]) -> dict[str, Any] | None:
    """The head that the checkpoint carries, or a draft model with a config of its own."""
    if (name := dump.get("draft_model")) is None:
        return {"algorithm": "EAGLE"} if dump["draft"] else None
    return {"draft_model_path": name, "draft_config": read(DATA / "configs" / f"{name}.json")}


def registered(dump: dict[str, Any], num_layers: int) -> Iterator[tuple[str, str, int, int]]:
    """(kind, tensor, layer, item_len) of every registered buffer, with the contract's names and ids."""
    drafts: dict[str, dict[str, int]] = {}
    for run in dump["tensors"]:
        kind, name = run["component"].removesuffix(".draft"), run["name"].removeprefix("draft.")
        for layer in run["layers"]:
            if run["name"] != name:
                layer = num_layers + (layer or 0)
            elif layer is None:
                layer = ROPE_RING_LAYER
            elif isinstance(layer, str):
                seen = drafts.setdefault(kind, {})
                layer = num_layers + seen.setdefault(layer, len(seen))
            yield kind, TENSORS.get(name, name), layer, run["item_len"]


def stage_of(dump: dict[str, Any], manifest: Manifest) -> Stage:
    return manifest.stages[dump["pp_rank"]]


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def dump(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def test_all_dumps_are_here() -> None:
    assert len(DUMPS) == 101


def test_entries_equal_what_the_engine_registers(dump: dict[str, Any]) -> None:
    manifest = derived(dump)
    stage = stage_of(dump, manifest)
    entries = [(c.kind, e.tensor, e.layer, e.item_len) for c in stage.components for e in c.entries]
    assert entries == list(registered(dump, manifest.stages[-1].layers[1]))
    assert manifest.page_size == dump["page_size"]
    assert manifest.kv_cache_dtype == dump["kv_cache_dtype"]


def test_stage_computes_the_layers_that_the_engine_says(dump: dict[str, Any]) -> None:
    """Nemotron-H's pool spans all layers whatever its stage computes; all others say their stage's range."""
    stage = stage_of(dump, derived(dump))
    if (dump["start_layer"], dump["end_layer"]) == (0, 52) and dump["pp"] > 1:
        assert stage.layers == ((0, 26), (26, 52))[dump["pp_rank"]]
    else:
        start, end = stage.layers
        assert start == dump["start_layer"]
        assert end == dump["end_layer"] or dump["end_layer"] is None  # a pool that does not say it


def test_layer_ids_equal_those_on_the_wire(dump: dict[str, Any]) -> None:
    """Where a pool gives ids, drafts and rings included, they are the engine's."""
    stage, kvargs = stage_of(dump, derived(dump)), dump["kvargs"]
    wire = {"kv": kvargs["kv_layer_ids"], **dict(zip(kvargs["state_types"], kvargs["state_layer_ids"], strict=True))}
    for component in stage.components:
        if ids := wire[component.kind]:
            assert [entry.layer for entry in component.entries] == ids


def test_blocks_of_a_split_state_equal_those_of_the_engine(dump: dict[str, Any]) -> None:
    """Sub-blocks, outer counts and local channels: what the engine slices by across unequal TP."""
    stage, kvargs = stage_of(dump, derived(dump)), dump["kvargs"]
    components = {component.kind: component for component in stage.components}
    for place, kind in enumerate(kvargs["state_types"]):
        facts = [
            expand(kvargs[f"state_{what}"][place])
            for what in ("dim_per_tensor", "slice_outer_counts", "conv_shard_groups")
        ]
        for entry, dim, outer, blocks in zip(components[kind].entries, *facts, strict=False):
            assert entry.item_len % outer == 0
            assert entry.sharding == ("split" if dim else "replicated")
            if not dim:
                continue
            assert entry.item_len == entry.outer * dim * entry.inner_bytes
            assert entry.outer == outer
            if blocks is not None:
                assert [group.heads * group.width for group in entry.groups] == blocks
            assert entry.engine_slices == ("flat" if entry.tensor == "conv" and blocks is None else "groups")


def expand(runs: list[list[Any]]) -> list[Any]:
    return [value for value, times in runs for _ in range(times)]


def test_attention_data_parallelism_is_the_smaller_layout() -> None:
    """TP 8 with DP 2 is exactly the TP 4 layout."""
    dump = read(DATA / "sglang" / "qwen35_397b_a17b_tp4_page64_bf16_pp1of1.json")
    assert derived(dump, tp=8, dp=2).stages == derived(dump).stages


def test_same_layout_under_any_name() -> None:
    """Geometry follows from keys: renamed models keep theirs."""
    for path in DUMPS:
        dump = read(path)
        if dump["pp"] > 1 or "gemma3" in dump["model"]:
            continue  # which pools span all stages, and whether sliding layers are split, is the engine's habit
        config = read(DATA / "configs" / f"{dump['model']}.json")
        renamed = {**config, "architectures": ["SomethingElse"], "model_type": "something_else"}
        assert derived(dump, config=renamed).stages == derived(dump).stages, path.stem


def components_of(manifest: Manifest) -> dict[str, Component]:
    return {component.kind: component for component in manifest.stages[0].components}


def test_dumps_of_one_stage_add_up() -> None:
    """Two stages together hold each layer's entries once, but for pools that span all stages."""
    two = [path for path in DUMPS if "pp1of2" in path.stem and "nemotron" not in path.stem]
    assert two
    for path in two:
        manifest = derived(read(path))
        whole = derived(read(path), pp=1)
        for kind, component in components_of(whole).items():
            halves = [e for s in manifest.stages for c in s.components if c.kind == kind for e in c.entries]
            once = {(e.tensor, e.layer): e for e in halves}
            assert once == {(e.tensor, e.layer): e for e in component.entries}
            for _, same in groupby(sorted(halves, key=repr)):
                assert len(list(same)) == 1 or kind == "qsa_pending"
