"""What a draft model keeps: of its own config, or of the head that a checkpoint carries."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry
from pdctl.derive.model import read_geometry
from pdctl.derive.request import Request
from pdctl.errors import ConfigError, InputError

#: Algorithms whose draft is a model with a KV cache, and those that keep nothing.
WITH_KV: Final = ("EAGLE", "EAGLE3", "NEXTN", "MTP", "STANDALONE", "DRAFT_MODEL")
WITHOUT_KV: Final = ("NGRAM", "SUFFIX", "MEDUSA", "NONE")


def draft_geometry(request: Request, config: Config, target: Geometry) -> Geometry | None:
    """The draft's geometry, its layers from 0; None without speculation, or where the algorithm keeps no KV.

    Raises InputError where no algorithm is named, ConfigError for one that is not known, and where the checkpoint
    carries no draft and none is given.
    """
    if not request.speculative:
        return None
    where = request.origins.get("speculative", "--speculative")
    name = algorithm(request.speculative)
    if name is None:
        raise InputError('names no algorithm, expected for instance {"algorithm": "EAGLE"}', where=where)
    if name in WITHOUT_KV:
        return None
    if name not in WITH_KV and not name.endswith("_MTP"):
        raise ConfigError(f"algorithm {name}: its draft's layout is not known", where=where)
    own = request.speculative.get("draft_config")
    if isinstance(own, Mapping):
        return read_geometry(Config(own, f"{config.source} (draft)"))
    return _carried(config, target, where)


def algorithm(speculative: Mapping[str, Any]) -> str | None:
    """The algorithm in upper case, from either of the keys that engines use for it."""
    for key in ("algorithm", "speculative_algorithm", "method"):
        if isinstance(word := speculative.get(key), str) and word:
            return word.upper().replace("-", "_")
    return None


def drafted_tokens(speculative: Mapping[str, Any] | None) -> int:
    """Tokens that a draft proposes a step; 0 where it is not said."""
    for key in ("num_draft_tokens", "speculative_num_draft_tokens", "num_speculative_tokens"):
        count = (speculative or {}).get(key)
        if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 1024:
            return count
    return 0


def _carried(config: Config, target: Geometry, where: str) -> Geometry:
    """The draft head in the checkpoint: full-attention layers of the target's geometry. Hybrids have one."""
    if target.sparse is not None:
        config.text().fail(
            "sparse_attention_config", f"the draft of a block-sparse model is not known; {where} names one"
        )
    count = target.draft_layers or (1 if target.recurrent is not None else None)
    if count is None:
        config.text().fail(
            "num_nextn_predict_layers",
            f"is missing, so the checkpoint carries no draft, and {where} names none whose config can be read",
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
        compressed=replace(target.compressed, ratios=(0,) * count) if target.compressed else None,
        index=replace(target.index, shared=frozenset()) if target.index else None,
        qsa=replace(target.qsa, layers=layers) if target.qsa else None,
    )
