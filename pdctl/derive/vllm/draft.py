"""The regions of a draft model in vLLM: further layers after the target's, on the last pipeline stage."""

from collections.abc import Callable

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.drafts import draft_geometry
from pdctl.derive.geometry import Geometry
from pdctl.derive.request import Request
from pdctl.derive.shapes import Pool, component
from pdctl.errors import ConfigError

NO_LAYER = -1
"""The ratio of a layer that is the target's."""
Pools = Callable[[Geometry], list[Pool]]


def draft_pools(request: Request, config: Config, target: Geometry, kv_dtype: str, pools: Pools) -> dict[str, Pool]:
    """The draft's pools by kind; empty without one. `pools`: those of a geometry, `kv_dtype`: the target's.

    Raises InputError or ConfigError where the draft is not known.
    """
    draft = draft_geometry(request, config, target)
    if draft is None:
        return {}
    if "draft_config" in (request.speculative or {}):
        _refuse_unlike(request, target, draft, kv_dtype, pools)
    first, window = target.num_layers, draft.sliding
    moved = replace(
        draft,
        full=tuple(first + layer for layer in draft.full),
        sliding=replace(window, layers=tuple(first + layer for layer in window.layers)) if window else None,
        recurrent=None,
        index=replace(draft.index, shared=frozenset()) if draft.index else None,
        qsa=replace(draft.qsa, layers=tuple(first + layer for layer in draft.qsa.layers)) if draft.qsa else None,
        compressed=replace(draft.compressed, ratios=(NO_LAYER,) * first + draft.compressed.ratios)
        if draft.compressed
        else None,
    )
    return {pool.kind: pool for pool in pools(moved)}


def _refuse_unlike(request: Request, target: Geometry, draft: Geometry, kv_dtype: str, pools: Pools) -> None:
    """A draft by a config of its own beside layers of several kinds: its pages are what theirs are, or not known.

    Layers that all see the whole prompt each have pages of their own size (kv_cache_utils.py:2189 of 0.32); else one
    size is made of all, by more tokens a block or by padding, which is not modelled.
    """
    spoken, where = request.speculative or {}, request.origins.get("speculative", "--speculative")
    for key, ours in (("draft_tensor_parallel_size", request.tp), ("kv_cache_dtype", kv_dtype)):
        if spoken.get(key) not in (None, ours):
            raise ConfigError(f"{key} {spoken[key]} of the draft beside {ours} of the target", where=where)
    if target.recurrent is None and target.sliding is None and draft.sliding is None:
        return
    rows = {
        entry.item_len
        for one in (target, draft)
        for pool in pools(replace(one, recurrent=None, index=None))
        for entry in component(pool, range(one.num_layers), request.attn_tp).entries
    }
    if len(rows) > 1 or (draft.sliding is not None and target.sliding is None):
        raise ConfigError(
            "the draft's pages are not of the size of the target's, and vLLM makes one of them in a way not known here",
            where=where,
        )
