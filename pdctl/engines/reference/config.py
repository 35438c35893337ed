"""The geometry of a reference model, read from a config.json with Hugging Face keys.

The builtin models are data in `models/`; which layers a model has follows from the keys of its config, never from its
name, so that the same file feeds the engine and the derivation of its layout.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdctl.errors import ConfigError, InputError

BUILTIN = "builtin:"
MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Gqa:
    """Grouped-query attention: `heads` query heads share `kv_heads` keys and values of `head_dim`."""

    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int


@dataclass(frozen=True)
class Mla:
    """Latent attention: one latent of `rank` + `rope_dim` a token, shared by all heads."""

    heads: int
    rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Delta:
    """A delta-rule layer: `per_channel` decay and row-major conv state is KDA, the other GDN."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    per_channel: bool


@dataclass(frozen=True)
class Ple:
    """Per-layer embedding of hashed n-grams, through a conv dilated by the n-gram size; `layers` count from 0."""

    layers: frozenset[int]
    ngram: int
    vocab: int
    embed_dim: int
    kernel: int

    @property
    def state_len(self) -> int:
        """Past inputs that the dilated conv needs."""
        return (self.kernel - 1) * self.ngram


@dataclass(frozen=True)
class Indexer:
    """The selector of a sparse-attention layer: one compressed key for `ratio` tokens, `budget` tokens attended."""

    layers: frozenset[int]
    heads: int
    kv_heads: int
    head_dim: int
    ratio: int
    budget: int


@dataclass(frozen=True)
class ModelConfig:
    """What the engine needs of a config.json; `raw` is the document itself."""

    name: str
    source: str
    raw: Mapping[str, Any]
    family: str
    seed: int
    vocab: int
    bos: int
    eos: int
    hidden: int
    intermediate: int
    eps: float
    max_positions: int
    rope_theta: float
    full_layers: tuple[bool, ...]
    attention: Gqa | Mla
    delta: Delta
    ple: Ple | None
    indexer: Indexer | None
    draft_layers: int

    @property
    def layers(self) -> int:
        """Layers of the target model."""
        return len(self.full_layers)


def load_config(model: str) -> ModelConfig:
    """Read `builtin:NAME` or a folder with a config.json.

    Raises InputError (PD3041) if there is no such model, ConfigError (PD3042) if a key is missing or unusable.
    """
    path = config_path(model)
    try:
        raw = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"not JSON: {error}", where=str(path), code="PD3042") from None
    try:
        return _read(path, raw)
    except KeyError as error:
        raise ConfigError(
            f"key {error.args[0]!r} is missing",
            where=str(path),
            code="PD3042",
            hint="the reference engine runs models with the keys of its builtin ones",
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a value cannot be used: {error}", where=str(path), code="PD3042") from None


def config_path(model: str) -> Path:
    """The config.json of a model; PD3041 if it is not there."""
    builtin = sorted(folder.name for folder in MODELS.iterdir() if folder.is_dir())
    folder = MODELS / model.removeprefix(BUILTIN) if model.startswith(BUILTIN) else Path(model)
    path = folder / "config.json"
    if not path.is_file():
        raise InputError(
            f"no model at {model!r}: {path if not model.startswith(BUILTIN) else 'no such builtin model'} not found",
            where="--model",
            code="PD3041",
            hint="give a folder with a config.json, or one of " + ", ".join(BUILTIN + name for name in builtin),
        )
    return path


def _read(path: Path, raw: Mapping[str, Any]) -> ModelConfig:
    linear = raw.get("linear_attn_config")
    full = _kda_full_layers(raw, linear) if linear else tuple(kind == "full_attention" for kind in raw["layer_types"])
    if len(full) != raw["num_hidden_layers"]:
        raise ValueError(f"num_hidden_layers is {raw['num_hidden_layers']}, but {len(full)} layers have a type")
    return ModelConfig(
        name=path.parent.name,
        source=str(path),
        raw=raw,
        family=raw["model_type"],
        seed=raw.get("seed", 0),
        vocab=raw["vocab_size"],
        bos=raw["bos_token_id"],
        eos=raw["eos_token_id"],
        hidden=raw["hidden_size"],
        intermediate=raw["intermediate_size"],
        eps=raw["rms_norm_eps"],
        max_positions=raw.get("max_position_embeddings") or raw["model_max_length"],
        rope_theta=raw["rope_theta"],
        full_layers=full,
        attention=_mla(raw) if "kv_lora_rank" in raw else _gqa(raw),
        delta=_kda(linear) if linear else _gdn(raw),
        ple=_ple(raw) if "ple_layer_ids" in raw else None,
        indexer=_indexer(raw, full) if "indexer_compress_ratio" in raw else None,
        draft_layers=raw.get("mtp_num_hidden_layers") or raw.get("num_nextn_predict_layers") or 0,
    )


def _kda_full_layers(raw: Mapping[str, Any], linear: Mapping[str, Any]) -> tuple[bool, ...]:
    """Kimi counts its layers from 1."""
    return tuple(layer + 1 in linear["full_attn_layers"] for layer in range(raw["num_hidden_layers"]))


def _gqa(raw: Mapping[str, Any]) -> Gqa:
    rotary = int(raw["head_dim"] * raw.get("partial_rotary_factor", 1.0))
    return Gqa(raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"], rotary)


def _mla(raw: Mapping[str, Any]) -> Mla:
    return Mla(
        heads=raw["num_attention_heads"],
        rank=raw["kv_lora_rank"],
        nope_dim=raw["qk_nope_head_dim"],
        rope_dim=raw["qk_rope_head_dim"],
        value_dim=raw["v_head_dim"],
    )


def _gdn(raw: Mapping[str, Any]) -> Delta:
    return Delta(
        key_heads=raw["linear_num_key_heads"],
        value_heads=raw["linear_num_value_heads"],
        key_dim=raw["linear_key_head_dim"],
        value_dim=raw["linear_value_head_dim"],
        kernel=raw["linear_conv_kernel_dim"],
        per_channel=False,
    )


def _kda(linear: Mapping[str, Any]) -> Delta:
    heads, dim = linear["num_heads"], linear["head_dim"]
    return Delta(heads, heads, dim, dim, linear["short_conv_kernel_size"], per_channel=True)


def _ple(raw: Mapping[str, Any]) -> Ple:
    """`ple_layer_ids` counts from 1, as in the published Qwen4-Exp config."""
    return Ple(
        layers=frozenset(layer - 1 for layer in raw["ple_layer_ids"]),
        ngram=raw["ngram_size"],
        vocab=raw["ngram_vocab_size_base"],
        embed_dim=raw["ple_embed_dim"],
        kernel=raw["ple_conv_kernel_size"],
    )


def _indexer(raw: Mapping[str, Any], full: tuple[bool, ...]) -> Indexer:
    """`indexer_layer_ids` counts from 0; without it every full-attention layer is sparse."""
    every = [layer for layer, is_full in enumerate(full) if is_full]
    return Indexer(
        layers=frozenset(raw.get("indexer_layer_ids", every)),
        heads=raw["indexer_n_heads"],
        kv_heads=raw["indexer_kv_heads"],
        head_dim=raw["indexer_head_dim"],
        ratio=raw["indexer_compress_ratio"],
        budget=raw["indexer_budget"],
    )
