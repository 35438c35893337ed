"""KV types with scales, and types of an index: what is laid out, and what is not known."""

from typing import Any

import pytest

from pdctl.derive import Derived, Request, derive
from pdctl.derive.flags import apply
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.manifest import Component
from tests.unit.derive.models import DSA, LLAMA, MIMO, MLA, oracle


def layout(config: dict[str, Any], *flags: str, engine: str = "sglang", **asked: Any) -> Derived:
    request = Request(**{"engine": engine, "role": "prefill", "page_size": 64, "config": config, **asked})
    return derive(apply(request, flags))


def components(derived: Derived) -> dict[str, Component]:
    return {one.kind: one for one in derived.manifest.stages[0].components}


@pytest.mark.parametrize(("page", "outer", "inner"), [(128, 1, 128 * 64 // 32), (64, 64, 64 // 32)])
def test_mxfp8_has_scales_beside_its_pages(page: int, outer: int, inner: int) -> None:
    """A byte for each 32 elements; a head's lie together in the pages that FA4 reads."""
    found = components(layout(LLAMA, "--kv-cache-dtype", "mxfp8", page_size=page, platform="sm100"))
    kept = {kind: part.index_space for kind, part in found.items()}
    assert kept == {"kv": "page", "block_scale": "page"}
    (entry, *_) = found["block_scale"].entries
    assert (entry.tensor, entry.outer, entry.inner_bytes, entry.item_len) == (
        "k_scale",
        outer,
        inner,
        page * 2 * 64 // 32,
    )
    assert found["kv"].entries[0].item_len == page * 2 * 64


def test_mxfp8_of_sliding_layers_has_scales_of_its_own() -> None:
    found = components(layout(MIMO, "--kv-cache-dtype", "mxfp8", "--attention-backend", "fa4"))
    assert list(found) == ["kv", "swa", "block_scale", "block_scale_swa"]
    assert found["block_scale_swa"].index_space == "window_page"


def test_mxfp8_is_of_sm100() -> None:
    assert any("sm100 is assumed: mxfp8" in note for note in layout(LLAMA, "--kv-cache-dtype", "mxfp8").notes)
    with pytest.raises(InputError, match="takes on sm100 alone"):
        layout(LLAMA, "--kv-cache-dtype", "mxfp8", platform="hopper")
    with pytest.raises(InputError, match="blocks of 32"):
        layout({**LLAMA, "head_dim": 72}, "--kv-cache-dtype", "mxfp8")


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (MLA, "mxfp8"),
        (oracle("qwen3_next_80b"), "mxfp8"),
        (oracle("minimax_m3_sparse"), "nvfp4"),
        (MIMO, "fp4_mx_block16"),
        (LLAMA, "fp4_e2m1"),
    ],
)
def test_scaled_types_where_no_pool_of_theirs_was_seen(config: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        layout(config, "--kv-cache-dtype", word)


def test_four_bits_are_two_elements_a_byte() -> None:
    found = components(layout(LLAMA, "--kv-cache-dtype", "fp4_mx_block16"))
    assert found["kv"].entries[0].item_len == 64 * 2 * 64 // 2
    assert components(layout(MLA, "--kv-cache-dtype", "fp4_mx_block16"))["kv"].entries[0].item_len == 64 * 576 // 2


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ('{"indexer_kv_dtype": "fp8"}', True),
        ('{"indexer_kv_dtype": "auto", "backend": "FLASHMLA_SPARSE"}', True),
        ('{"indexer_kv_dtype": "mxfp4"}', False),
        ('{"use_fp4_indexer_cache": true}', False),
        ('{"use_fp4_indexer_cache": false}', True),
    ],
)
def test_an_index_of_another_type_is_not_known_in_vllm(words: str, known: bool) -> None:
    """In two spellings, as JSON or in parts; without an index the flag shapes nothing."""
    if known:
        assert "dsa" in components(layout(DSA, "--attention-config", words, engine="vllm"))
    else:
        with pytest.raises(ConfigError, match="an index of type mxfp4"):
            layout(DSA, "--attention-config", words, engine="vllm")
    assert "kv" in components(layout(LLAMA, "--attention-config", words, engine="vllm"))
    if not known:
        with pytest.raises(ConfigError, match="an index of type mxfp4"):
            layout(DSA, "--attention-config.indexer_kv_dtype", "mxfp4", engine="vllm")
