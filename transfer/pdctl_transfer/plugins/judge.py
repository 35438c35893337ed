"""The verdict on a pair at the handshake: the same rules that `pdctl check` runs, errors only."""

from collections.abc import Mapping
from typing import Any

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.peer import Refusal


def judge(prefill: Manifest, decode: Manifest) -> Refusal | None:
    """None where the pair fits; else the first code, and what was found."""
    if prefill.page_size != decode.page_size:
        return Refusal("PD1001", f"page size {prefill.page_size} on prefill, {decode.page_size} on decode")
    if prefill.kv_cache_dtype != decode.kv_cache_dtype:
        return Refusal("PD1002", f"KV dtype {prefill.kv_cache_dtype} on prefill, {decode.kv_cache_dtype} on decode")
    return None


def judge_sizes(prefill: Mapping[str, Any], decode: Manifest) -> Refusal | None:
    """The same for a prefill side without the plugin, of which only SGLang's own bootstrap answer is known."""
    page_size, dtype = prefill.get("page_size"), prefill.get("kv_cache_dtype")
    if page_size is not None and int(page_size) != decode.page_size:
        return Refusal("PD1001", f"page size {page_size} on prefill, {decode.page_size} on decode")
    if dtype is not None and str(dtype) != decode.kv_cache_dtype:
        return Refusal("PD1002", f"KV cache dtype {dtype} on prefill, {decode.kv_cache_dtype} on decode")
    return None
