"""What a draft model keeps: of its own config, or of the head that a checkpoint carries."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry
from pdctl.derive.model import read_geometry
from pdctl.derive.request import Request
from pdctl.errors import ConfigError, InputError, UnknownDraftError

#: Algorithms whose draft is a model with a KV cache: a head that the checkpoint carries, or a model of its own.
HEADS: Final = ("EAGLE", "NEXTN", "MTP")
OWN_MODEL: Final = ("EAGLE3", "DFLASH", "DSPARK", "STANDALONE", "DRAFT_MODEL")
#: Algorithms that keep nothing: they look at the text, or read the KV of the target.
WITHOUT_KV: Final = ("NGRAM", "NGRAM_GPU", "SUFFIX", "MEDUSA", "FROZEN_KV_MTP", "GEMMA4_MTP", "NONE")
#: Where speculative settings name a draft model of its own.
DRAFT_PATHS: Final = ("draft_model_path", "speculative_draft_model_path", "model")
#: Where vLLM's speculators keep the config of the layers.
LAYERS_OF: Final = "transformer_layer_config"


def draft_geometry(request: Request, config: Config, target: Geometry) -> Geometry | None:
    """The draft's geometry, its layers from 0; None without speculation, or where the algorithm keeps no KV.

    Raises InputError where no algorithm is named, ConfigError for one that is not known, and where the checkpoint
    carries no draft and none is given; UnknownDraftError where one is named and its config is not here.
    """
    if not request.speculative:
        return None
    where = request.origins.get("speculative", "--speculative")
    name = algorithm(request.speculative)
    if name is None:
        raise InputError('names no algorithm, expected for instance {"algorithm": "EAGLE"}', where=where)
    if name in WITHOUT_KV or request.without_draft:
        return None
    if name not in (*HEADS, *OWN_MODEL) and not name.endswith("_MTP"):
        raise ConfigError(f"algorithm {name}: its draft's layout is not known", where=where)
    own = request.speculative.get("draft_config")
    if isinstance(own, Mapping):
        return _own(Config(own, f"{config.source} (draft)"), request, where)
    named = draft_named(request.speculative)
    if named is None and name in OWN_MODEL:
        raise ConfigError(f"algorithm {name}: names no draft model, and a checkpoint's own is not known", where=where)
    if named is not None and (name in OWN_MODEL or not _carries(target)):
        raise UnknownDraftError(
            f"the draft model {named}: its config.json is not here",
            where=where,
            hint="hand in the folder that holds it: --draft DIR, or model.draft in the fleet file",
        )
    return _carried(config, target, where)


def draft_named(speculative: Mapping[str, Any] | None) -> str | None:
    """The draft model that the settings name; None where they name none."""
    words = [(speculative or {}).get(key) for key in DRAFT_PATHS]
    return next((word for word in words if isinstance(word, str) and word), None)


def assumed(request: Request) -> tuple[str, ...]:
    """A note where a head is named that is another checkpoint's, and is taken to be the one of the model's own."""
    spoken = request.speculative
    if not spoken or request.without_draft or "draft_config" in spoken or (name := draft_named(spoken)) is None:
        return ()
    word = algorithm(spoken) or ""
    if word in OWN_MODEL or word in WITHOUT_KV:
        return ()
    return (f"the draft {name} is taken to be the head that the checkpoint carries (its own config: --draft DIR)",)


def _own(config: Config, request: Request, where: str) -> Geometry | None:
    """A draft by its own config. A recurrent one's state is not known to be moved."""
    if config.word("model_type") in ("medusa", "mlp_speculator"):
        return None
    layers = config.child(LAYERS_OF) if config.has(LAYERS_OF) else config
    found = read_geometry(layers, request.engine)
    if found.recurrent is not None or found.ple is not None or found.sparse is not None:
        config.fail("num_hidden_layers", f"{where} names a draft with state beside its KV, which is not understood")
    return found


def algorithm(speculative: Mapping[str, Any]) -> str | None:
    """The algorithm in upper case, from either of the keys that engines use for it.

    vLLM finds it out by the draft model where `model` stands alone; what has a config of its own is one to pdctl.
    """
    for key in ("algorithm", "speculative_algorithm", "method"):
        if isinstance(word := speculative.get(key), str) and word:
            return word.upper().replace("-", "_")
    return "DRAFT_MODEL" if isinstance(speculative.get("model"), str) else None


def drafted_tokens(speculative: Mapping[str, Any] | None) -> int:
    """Tokens that a draft proposes a step; 0 where it is not said."""
    for key in ("num_draft_tokens", "speculative_num_draft_tokens", "num_speculative_tokens"):
        count = (speculative or {}).get(key)
        if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 1024:
            return count
    return 0


def _carries(target: Geometry) -> bool:
    """Whether the checkpoint has a head of its own: as its keys say, and hybrids with a temporal state have one."""
    state = target.recurrent
    return target.draft_layers is not None or (state is not None and state.temporal_heads > 0)


def _carried(config: Config, target: Geometry, where: str) -> Geometry:
    """The draft head in the checkpoint: full-attention layers of the target's geometry. Hybrids have one."""
    if target.sparse is not None:
        config.text().fail(
            "sparse_attention_config", f"the draft of a block-sparse model is not known; {where} names one"
        )
    if not _carries(target):
        config.text().fail(
            "num_nextn_predict_layers",
            f"is missing, so the checkpoint carries no draft, and {where} names none whose config can be read",
        )
    count = target.draft_layers or 1
    layers = tuple(range(count))
    return replace(
        target,
        num_layers=count,
        full=layers,
        sliding=None,
        recurrent=None,
        fold=1,
        ple=None,
        sparse=None,
        compressed=replace(target.compressed, ratios=(0,) * count) if target.compressed else None,
        index=replace(target.index, shared=frozenset()) if target.index else None,
        qsa=replace(target.qsa, layers=layers) if target.qsa else None,
    )
