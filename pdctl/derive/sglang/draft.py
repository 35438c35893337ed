"""The buffers of a draft model, which ride at the end of the target's on the last pipeline stage.

Their ids continue the target's: a draft's distinct ids, in their order, become `num_hidden_layers`,
`num_hidden_layers + 1`, … within each component.
"""

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.drafts import draft_geometry
from pdctl.derive.geometry import Geometry
from pdctl.derive.request import Request
from pdctl.derive.sglang import pools
from pdctl.derive.sglang.settings import Settings
from pdctl.derive.shapes import Pool


def draft_pools(request: Request, config: Config, target: Geometry, settings: Settings) -> dict[str, Pool]:
    """The draft's pools by kind; empty without speculation. Raises InputError or ConfigError where it is not known."""
    if config.text().has("hybrid_layer_pattern") and "draft_config" not in (request.speculative or {}):
        return {}  # the head of such a checkpoint is one sliding-window layer, and those of drafts are not transferred
    draft = draft_geometry(request, config, target)
    if draft is None:
        return {}
    first = target.num_layers
    layers = tuple(first + layer for layer in draft.attention_layers)
    found = [pools.kv_pool(layers, draft.attention, settings)]
    if draft.index is not None:
        found = pools.with_index(found, layers, draft.index.dim, frozenset(), settings)
    if draft.qsa is not None:
        found += pools.qsa_pools(replace(draft.qsa, layers=layers), first + len(layers), settings)
    return {pool.kind: pool for pool in found}
