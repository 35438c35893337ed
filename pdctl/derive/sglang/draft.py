"""The buffers of a draft model, which ride at the end of the target's on the last pipeline stage.

Their ids continue the target's: a draft's distinct ids, in their order, become `num_hidden_layers`,
`num_hidden_layers + 1`, … within each component.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.drafts import algorithm, draft_geometry, draft_named
from pdctl.derive.geometry import Geometry
from pdctl.derive.request import Request
from pdctl.derive.sglang import facts, pools
from pdctl.derive.sglang.compressed import Choices, draft_pool, dspark_pools
from pdctl.derive.sglang.settings import Settings
from pdctl.derive.shapes import Pool
from pdctl.errors import ConfigError


def draft_pools(
    request: Request, config: Config, target: Geometry, settings: Settings, packed: Choices | None
) -> dict[str, Pool]:
    """The draft's pools by kind; empty without speculation. Raises InputError or ConfigError where it is not known."""
    if config.text().has("hybrid_layer_pattern") and "draft_config" not in (request.speculative or {}):
        return {}  # the head of such a checkpoint is one sliding-window layer, and those of drafts are not transferred
    if packed is not None and (stages := _bundled_stages(request, config)):
        return dspark_pools(target.num_layers, stages, packed)
    draft = draft_geometry(request, config, target)
    if draft is None:
        return {}
    _refuse_other_width(request)
    first = target.num_layers
    if packed is not None:
        _refuse_other_draft(request)
        return {"swa": draft_pool(first, draft.num_layers, packed)}
    layers = tuple(first + layer for layer in _transferred(request, draft))
    found = [pools.kv_pool(layers, draft.attention, settings)]
    if draft.index is not None:
        found = pools.with_index(found, layers, draft.index.dim, frozenset(), settings)
    if draft.qsa is not None:
        found += pools.qsa_pools(replace(draft.qsa, layers=layers), first + len(layers), settings)
    return {pool.kind: pool for pool in found}


def _bundled_stages(request: Request, config: Config) -> int:
    """Layers of the DSpark draft that a checkpoint of DeepSeek-V4 carries; 0 where it is no such draft."""
    spoken, text = request.speculative or {}, config.text()
    if algorithm(spoken) != "DSPARK" or "draft_config" in spoken or draft_named(spoken) is not None:
        return 0
    return len(text.sizes("dspark_target_layer_ids")) if text.has("dspark_target_layer_ids") else 0


def _refuse_other_draft(request: Request) -> None:
    """Beside DeepSeek-V4 the engine takes EAGLE, which runs the checkpoint's own head, and DSPARK."""
    name = algorithm(request.speculative or {})
    if name not in ("EAGLE", "NEXTN", "MTP") or "draft_config" in (request.speculative or {}):
        where = request.origins.get("speculative", "--speculative")
        raise ConfigError(f"{name}: the layout of a draft other than DeepSeek-V4's own is not known", where=where)


def _transferred(request: Request, draft: Geometry) -> tuple[int, ...]:
    """Layers of the draft that travel: a sliding pool of its own would not, and most classes have one pool for all."""
    own = (request.speculative or {}).get("draft_config")
    names = own.get("architectures") if isinstance(own, Mapping) else None
    apart = draft.sliding is not None and draft.sliding.attention != draft.attention
    return draft.full if apart or not facts.SPLITS_SLIDING.isdisjoint(names or ()) else draft.attention_layers


def _refuse_other_width(request: Request) -> None:
    """Dense drafts of a model of its own leave context parallelism: they are cut over all ranks, the target is not.

    SGLang 0.5.23, runtime_context.py:489 and speculative/draft_parallel.py.
    """
    name = algorithm(request.speculative or {})
    if request.cp > 1 and request.dp == 1 and name in ("EAGLE3", "DFLASH", "DSPARK"):
        where = request.origins.get("speculative", "--speculative")
        raise ConfigError(f"{name} under context parallelism is cut over other ranks than its target", where=where)
