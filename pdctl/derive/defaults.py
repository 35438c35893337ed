"""What a config.json leaves out and the model's own class fills in: a table made from transformers' classes.

`tools/class_defaults.py` makes the table. Without it a head size that is left out would be the hidden size over the
heads, which is wrong for every class that has another default. Null in a config is what it says: only keys that are
not there at all are filled.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from pdctl.derive.config import Config
from pdctl.derive.families.attention import KV_HEADS
from pdctl.derive.families.layers import PATTERNS
from pdctl_transfer.layout.digest import NESTED

#: Spellings of one thing: where a config has one of them, no other is filled in beside it.
SPELLINGS: Final = (
    KV_HEADS,
    ("head_dim", "attention_head_dim"),
    ("n_groups", "mamba_n_groups"),
    ("conv_kernel", "mamba_d_conv"),
    ("layer_types", *PATTERNS),
    *(("linear_attn_config", key) for key in ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")),
)
#: Keys that a config of its own always has: where one is missing, the file is cut off or another's. A nested part may
#: leave them out, for it is written as the difference from its class.
REQUIRED: Final = frozenset({"num_hidden_layers", "num_layers", "hidden_size", "num_attention_heads"})
#: Keys without which a layout rests on the hidden size over the heads, or on as many KV heads as query heads.
ASSUMED: Final = (("head_dim", "attention_head_dim", "kv_lora_rank"), (*KV_HEADS, "multi_query", "kv_lora_rank"))


def filled(config: Config) -> Config:
    """The language model's part with what its class fills in."""
    text, name = _text(config)
    return Config({**_missing(text, name), **text.data}, text.source, text.path)


def notes(config: Config) -> tuple[str, ...]:
    """Which values come from the class, or that there is no class to ask where something is left out."""
    text, name = _text(config)
    version = _table()["transformers"]
    if name not in _table()["classes"]:
        left_out = [keys[0] for keys in ASSUMED if not any(text.has(key) for key in keys)]
        called = f"model_type {name}" if name else "a config without a model_type"
        said = f"{called} is not among the classes of transformers {version}: {' and '.join(left_out)}, left out, "
        return (said + "follow from hidden_size and num_attention_heads",) if left_out else ()
    keys = ", ".join(f"{key} {_shown(value)}" for key, value in _missing(text, name).items() if key in SHOWN)
    return (f"left out of the config, by the class of {name} in transformers {version}: {keys}",) if keys else ()


#: Keys whose default is worth a word: each layout has them.
SHOWN: Final = frozenset(
    {"head_dim", "num_attention_heads", "num_key_value_heads", "hidden_size", "num_hidden_layers", "layer_types"}
)


def _missing(text: Config, name: str) -> dict[str, Any]:
    """What the class of this name fills in beside the keys that are there."""
    data, found = text.data, dict[str, Any]()
    for key, value in _table()["classes"].get(name, {}).items():
        if key == "nested" or any(spelling in data for keys in SPELLINGS if key in keys for spelling in keys):
            continue
        if key not in data and (text.path or key not in REQUIRED):
            found[key] = value
    count = data.get("num_hidden_layers", found.get("num_hidden_layers"))
    if "layer_types" in found:
        period = found.pop("layer_types")
        windowless = period["others"] == "sliding_attention" and data.get("sliding_window", 0) is None
        if isinstance(count, int) and not windowless:
            found["layer_types"] = _types(period, count)
    return found


def _types(period: Mapping[str, Any], count: int) -> list[str]:
    """One word a layer: full attention every so many layers."""
    every, others = period["every"], period["others"]
    kinds = ["full_attention" if (layer + 1) % every == 0 else others for layer in range(min(count, 4096))]
    return [*kinds[:-1], period["last"]] if "last" in period and kinds else kinds


def _text(config: Config) -> tuple[Config, str]:
    """The language model's part and the name of its class: its own, or the one that the class around it has there."""
    name = _name(config)
    for key in NESTED:
        if isinstance(config.get(key), Mapping):
            child = config.child(key)
            inner = _table()["classes"].get(name, {}).get("nested", {}).get(key, "")
            return _text(child) if _name(child) or not inner else (child, inner)
    return config, name


def _name(config: Config) -> str:
    word = config.get("model_type")
    return word if isinstance(word, str) else ""


def _shown(value: Any) -> str:
    return f"by {len(value)} layers" if isinstance(value, list) else str(value)


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("defaults.json").read_bytes())
    return found
