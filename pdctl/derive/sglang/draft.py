"""The buffers of a draft model, which ride at the end of the target's on the last pipeline stage.

Their ids continue the target's: a draft's distinct ids, in their order, become `num_hidden_layers`,
`num_hidden_layers + 1`, … within each component.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry
from pdctl.derive.model import read_geometry
from pdctl.derive.request import Request
from pdctl.derive.sglang import pools
from pdctl.derive.sglang.settings import Settings
from pdctl.derive.shapes import Pool
from pdctl.errors import InputError

#: Algorithms whose draft keeps a KV cache that is transferred, and those that keep none.
WITH_KV = frozenset({"EAGLE", "EAGLE3", "NEXTN", "MTP", "STANDALONE", "DEEPSEEK_MTP", "QWEN3_NEXT_MTP"})
WITHOUT_KV = frozenset({"NGRAM", "SUFFIX"})


def algorithm(speculative: Mapping[str, Any]) -> str | None:
    """The algorithm in upper case, from either of the keys that engines use for it."""
    for key in ("algorithm", "speculative_algorithm", "method"):
        if isinstance(word := speculative.get(key), str):
            return word.upper().replace("-", "_")
    return None


def draft_pools(request: Request, config: Config, target: Geometry, settings: Settings) -> dict[str, Pool]:
    """The draft's pools by kind; empty without speculation. Raises InputError or ConfigError where it is not known."""
    if not request.speculative:
        return {}
    name = algorithm(request.speculative)
    where = request.origins.get("speculative", "--speculative")
    if name is None:
        raise InputError('names no algorithm, expected for instance {"algorithm": "EAGLE"}', where=where)
    if name in WITHOUT_KV:
        return {}
    if name not in WITH_KV:
        raise InputError(f"algorithm {name}: its draft's layout is not known", where=where)
    drafted = request.speculative.get("draft_config")
    if isinstance(drafted, Mapping):
        geometry = read_geometry(Config(drafted, f"{config.source} (draft)"))
        return _own_pools(geometry, target.num_layers, settings)
    if config.text().has("hybrid_layer_pattern"):
        return {}  # a draft head of this kind is one sliding-window layer, and those of drafts are not transferred
    return _own_pools(_carried(config, target, where), target.num_layers, settings)


def _carried(config: Config, target: Geometry, where: str) -> Geometry:
    """The draft head that a checkpoint carries: full-attention layers of the target's geometry."""
    count = target.draft_layers
    if count is None and target.recurrent is not None:
        count = 1
    if count is None:
        config.text().fail(
            "num_nextn_predict_layers",
            f"is missing, so the checkpoint carries no draft; {where} needs a draft model's config",
        )
    layers = tuple(range(count))
    return replace(
        target,
        num_layers=count,
        full=layers,
        sliding=None,
        recurrent=None,
        ple=None,
        sparse=None,
        index=replace(target.index, shared=frozenset()) if target.index else None,
        qsa=replace(target.qsa, layers=layers) if target.qsa else None,
    )


def _own_pools(draft: Geometry, first: int, settings: Settings) -> dict[str, Pool]:
    """The draft's pools with ids from `first` on; its RoPE ring comes after its layers."""
    layers = tuple(first + layer for layer in draft.attention_layers)
    found = [pools.kv_pool(layers, draft.attention, settings)]
    if draft.index is not None:
        found = pools.with_index(found, layers, draft.index.dim, frozenset(), settings)
    if draft.qsa is not None:
        found += pools.qsa_pools(replace(draft.qsa, layers=layers), first + len(layers), settings)
    return {pool.kind: pool for pool in found}
