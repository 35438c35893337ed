"""What the plugin reads from SGLang's KVArgs is the layout that pdctl derives, for every dump of the real engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from pdctl_transfer.layout.algebra import faults
from pdctl_transfer.layout.manifest import Component, Entry, Model, Parallel, Transfer
from pdctl_transfer.plugins.sglang_layout import Side, manifest, merge
from tests.oracle.test_oracle_dumps import DATA, DUMPS, derived, expand, read, registered, stage_of


def kv_args(dump: dict[str, Any], num_layers: int) -> SimpleNamespace:
    """KVArgs as the engine had them, rebuilt from the dump's runs."""
    wire, lengths = dump["kvargs"], {}
    for kind, _, _, length in registered(dump, num_layers):
        lengths.setdefault(kind, []).append(length)
    expanded = {
        f"state_{name}": [expand(runs) for runs in wire[f"state_{name}"]]
        for name in ("dim_per_tensor", "slice_outer_counts", "conv_shard_groups")
    }
    drafts = sum(1 for _, _, layer, _ in registered(dump, num_layers) if layer == num_layers) if dump["draft"] else 0
    kv_drafts = sum(
        1 for kind, _, layer, _ in registered(dump, num_layers) if kind == "kv" and num_layers <= layer < 2**31
    )
    return SimpleNamespace(
        page_size=dump["page_size"],
        kv_cache_dtype_str=dump["kv_cache_dtype"],
        kv_layout=None,
        pp_rank=dump["pp_rank"],
        num_draft_entries=kv_drafts if drafts else 0,
        kv_item_lens=lengths["kv"],
        kv_layer_ids=wire["kv_layer_ids"],
        state_types=[SimpleNamespace(value=kind) for kind in wire["state_types"]],
        state_item_lens=[expand(runs) for runs in wire["state_item_lens"]]
        if "state_item_lens" in wire
        else [lengths[kind] for kind in wire["state_types"]],
        mla_compression_ratios=wire.get("mla_compression_ratios"),
        state_layer_ids=wire["state_layer_ids"],
        **expanded,
    )


def live_stage(dump: dict[str, Any]) -> tuple[Any, Any]:
    expected = derived(dump)
    config = read(DATA / "configs" / f"{dump['model']}.json")
    text = config.get("text_config", config)
    num_layers = expected.stages[-1].layers[1]
    kv = [entry for component in stage_of(dump, expected).components for entry in component.entries]
    heads = next((entry.groups[0].heads for entry in kv if entry.tensor == "k"), 1)
    side = Side(
        role="prefill",
        engine_version="0.5.23",
        model=Model(dump["model"]),
        transfer=Transfer("mooncake"),
        parallel=Parallel(attn_tp=expected.parallel.attn_tp, pp=1),
        layers=stage_of(dump, expected).layers,
        num_layers=num_layers,
        kv_heads=heads,
        mla=any(entry.tensor == "latent" for entry in kv),
        config=text,
    )
    return manifest(kv_args(dump, num_layers), side), stage_of(dump, expected)


#: A draft with heads of its own beside latents: KVArgs does not say how many there are in all.
UNSAID = {"deepseek_v3_tp4_page64_bf16_pp1of1_dflash"}


@pytest.mark.parametrize("path", [path for path in DUMPS if path.stem not in UNSAID], ids=lambda path: path.stem)
def test_live_layout_equals_the_derived_one(path: Any) -> None:
    live, expected = live_stage(read(path))
    assert [c.kind for c in live.stages[0].components] == [c.kind for c in expected.components]
    for seen, known in zip(live.stages[0].components, expected.components, strict=True):
        assert [_facts(e, seen) for e in seen.entries] == [_facts(e, seen) for e in known.entries]
        assert seen.index_space == known.index_space
    assert [fault for fault in faults(live) if "stages" not in fault.path or "entries" in fault.path] == []


def _facts(entry: Entry, live: Component) -> tuple[Any, ...]:
    """What both must say. Layer ids only where the pool has some; the inside of a split state, not of a whole one."""
    layer = entry.layer if all(e.layer is not None for e in live.entries) else None
    shape = (entry.outer, entry.inner_bytes, entry.groups) if entry.sharding == "split" else ()
    return entry.tensor, layer, entry.item_len, entry.sharding, entry.engine_slices, shape


def test_stages_of_one_side_merge_in_order() -> None:
    """The bootstrap server gets the stages in any order; decode must see them as one manifest."""
    paths = [path for path in DUMPS if path.stem.startswith("kimi_linear_48b_tp4") and "of2" in path.stem]
    assert len(paths) == 2
    parts = [live_stage(read(path))[0] for path in reversed(paths)]
    assert [stage.pp_rank for stage in merge(parts).stages] == [0, 1]
