"""DeepSeek-V4 on SGLang: what each key, variable and flag makes of its pools."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.derive.flags import apply, apply_environment
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.algebra import faults, split_faults
from tests.unit.derive.models import V4

EAGLE = {"algorithm": "EAGLE", "num_draft_tokens": 4}
Size = tuple[str, str, int, int]


def layout(variables: dict[str, str] | None = None, words: tuple[str, ...] = (), **asked: Any) -> Derived:
    request = Request(**{"engine": "sglang", "role": "prefill", "config": V4, **asked})
    derived = derive(apply(apply_environment(request, variables or {}), words))
    assert faults(derived.manifest) == []
    assert split_faults(derived.manifest) == []
    return derived


def sizes(derived: Derived, stage: int = 0) -> list[Size]:
    """(kind, tensor, layer, bytes of an item)."""
    parts = derived.manifest.stages[stage].components
    return [(part.kind, e.tensor, e.layer or 0, e.item_len) for part in parts for e in part.entries]


def one(derived: Derived, kind: str, tensor: str) -> int:
    """The length that all entries of this kind and tensor have."""
    (found,) = {size for name, word, _, size in sizes(derived) if (name, word) == (kind, tensor)}
    return found


def test_layers_are_grouped_by_ratio_and_every_one_has_a_window() -> None:
    """A page of 256 tokens has 64 latents of ratio 4 and 2 of ratio 128, padded to whole rows of 576 bytes."""
    derived = layout()
    assert sizes(derived) == [
        *(("kv", "latent", layer, 37440) for layer in (1, 3)),
        *(("kv", "index_k", layer, 64 * 132) for layer in (1, 3)),
        *(("kv", "latent", layer, 1728) for layer in (2, 4)),
        *(("swa", "latent", layer, 149760) for layer in range(5)),
        *(("swa", "state", layer, 8 * 4 * 512 * 4) for layer in (1, 3)),
        *(("swa", "index_state", layer, 8 * 4 * 128 * 4) for layer in (1, 3)),
        *(("c128_state", "state", layer, 128 * 2 * 512 * 4) for layer in (2, 4)),
    ]
    spaces = [part.index_space for part in derived.manifest.stages[0].components]
    assert spaces == ["page", "window_page", "other"]
    assert (derived.manifest.page_size, derived.manifest.kv_cache_dtype) == (256, "fp8_e4m3")
    assert derived.manifest.kv_layout == "v4,c4:v4,c128:v4"


def test_nothing_is_cut_over_ranks() -> None:
    assert sizes(layout(tp=8)) == sizes(layout()) == sizes(layout(tp=8, dp=8))


def test_speculation_widens_the_small_ring_and_adds_a_window_of_its_own() -> None:
    """The draft's layer is a component of its own, as SGLang registers it; the large ratio's item stays a page."""
    plain, drafted = layout(), layout(speculative=EAGLE)
    assert one(drafted, "swa", "state") == 2 * one(plain, "swa", "state")
    assert one(drafted, "swa", "index_state") == 2 * one(plain, "swa", "index_state")
    assert one(drafted, "c128_state", "state") == one(plain, "c128_state", "state")
    *_, draft = drafted.manifest.stages[0].components
    assert (draft.kind, [(e.tensor, e.layer, e.item_len) for e in draft.entries]) == ("swa", [("latent", 5, 149760)])


def test_a_bundled_dspark_draft_has_windows_and_a_row_a_request() -> None:
    """Its layers are those that read the target's hidden states; the row says from where the windows are valid."""
    bundled = {**V4, "dspark_target_layer_ids": [2, 3, 4], "dspark_block_size": 5}
    derived = layout(config=bundled, speculative={"algorithm": "DSPARK"})
    assert sizes(derived)[-4:] == [
        *(("swa", "latent", layer, 149760) for layer in (5, 6, 7)),
        ("request_row", "valid_from", 5, 8),
    ]
    assert derived.manifest.stages[0].components[-1].index_space == "row"
    with pytest.raises(ConfigError, match="DSPARK"):
        layout(speculative={"algorithm": "DSPARK"})


def test_a_stage_holds_its_own_layers_and_the_last_the_draft() -> None:
    derived = layout(pp=2, speculative=EAGLE)
    layers = [{layer for _, _, layer, _ in sizes(derived, stage)} for stage in (0, 1)]
    assert layers == [{0, 1}, {2, 3, 4, 5}]


@pytest.mark.parametrize(
    ("variables", "words", "kind", "tensor", "size"),
    [
        ({"SGLANG_OPT_USE_ONLINE_COMPRESS": "1"}, (), "c128_state", "state", 3 * 512 * 4),
        ({"SGLANG_OPT_USE_ONLINE_COMPRESS": "0"}, (), "c128_state", "state", 128 * 2 * 512 * 4),
        ({"SGLANG_DSV4_COMPRESS_STATE_DTYPE": "bfloat16"}, (), "swa", "index_state", 8 * 4 * 128 * 2),
        ({"SGLANG_DSV4_KV_LAYOUT": "v41"}, (), "swa", "latent", 256 * 528),
        ({"SGLANG_DSV4_KV_LAYOUT": "auto"}, (), "swa", "latent", 256 * 528),
        ({}, ("--enable-deepseek-v4-fp4-indexer",), "kv", "index_k", 64 * 68),
    ],
)
def test_what_variables_and_flags_change(
    variables: dict[str, str], words: tuple[str, ...], kind: str, tensor: str, size: int
) -> None:
    assert one(layout(variables, words, platform="sm100"), kind, tensor) == size


@pytest.mark.code("PD0022")
@pytest.mark.parametrize(
    ("variables", "asked", "says"),
    [
        ({}, {"kv_cache_dtype": "bfloat16"}, "fp8_e4m3"),
        ({}, {"config": {**V4, "head_dim": 256}}, "head_dim"),
        ({}, {"platform": "npu"}, "NPU"),
        ({}, {"speculative": {"algorithm": "STANDALONE"}}, "STANDALONE"),
        ({}, {"speculative": {"algorithm": "EAGLE", "draft_config": V4}}, "draft other than"),
        ({"SGLANG_OPT_USE_ONLINE_COMPRESS": "1"}, {"speculative": EAGLE}, "does not start"),
        ({"SGLANG_OPT_USE_ONLINE_COMPRESS": "maybe"}, {}, "maybe"),
        ({"SGLANG_DSV4_KV_LAYOUT": "v41"}, {"platform": "hopper"}, "sm100"),
        ({"SGLANG_DSV4_COMPRESSED_KV_LAYOUT": "fp4"}, {}, "fp4"),
        ({"SGLANG_DSV4_COMPRESS_STATE_DTYPE": "int8"}, {}, "int8"),
    ],
)
def test_what_the_engine_would_not_start_with(variables: dict[str, str], asked: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, InputError), match=says):
        layout(variables, **asked)


def test_online_compression_with_drafts_starts_where_it_is_tried_out() -> None:
    tried = {"SGLANG_OPT_USE_ONLINE_COMPRESS": "1", "SGLANG_EXPERIMENTAL_ONLINE_C128_MTP": "1"}
    assert one(layout(tried, speculative=EAGLE), "c128_state", "state") == 3 * 512 * 4


def test_a_page_size_that_is_asked_for_is_overruled_and_said() -> None:
    derived = layout(page_size=64)
    assert derived.manifest.page_size == 256
    assert any("SGLang makes it 256" in note for note in derived.notes)
