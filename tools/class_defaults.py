"""Write `pdctl/derive/defaults.json`: what a config.json may leave out, and what transformers' own classes take then.

`python tools/class_defaults.py` in an environment that has transformers (no torch, no weights); pdctl needs neither.
Each class is made with several sizes: what follows from other keys as pdctl takes it anyway is left out, what is
constant is kept.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "transfer")]

from pdctl.derive.model import UNKNOWN_STATE  # noqa: E402
from pdctl_transfer.layout.digest import GEOMETRY_KEYS, NESTED  # noqa: E402

TABLE = ROOT / "pdctl" / "derive" / "defaults.json"
KEYS = sorted(
    {*GEOMETRY_KEYS, *UNKNOWN_STATE, "mamba_ssm_dtype", "max_position_embeddings"}
    - {"layer_types", "layers_block_type"}
)
#: Sizes that a class is made with, so that what follows from them is seen to.
SIZES = (
    {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 25},
    {"hidden_size": 12288, "num_attention_heads": 64, "num_hidden_layers": 38},
)
#: With what classes refuse sizes.
REFUSALS = (TypeError, ValueError, AttributeError, KeyError, ArithmeticError, ImportError, RuntimeError)
FULL = ("full_attention", "attention")


def of_class(made: Any) -> dict[str, Any]:
    """Defaults of one class; empty where it cannot be made without more, or has no layers."""
    plain = _made(made, {})
    if plain is None or not isinstance(plain.get("hidden_size"), int):
        return {}
    several = [one for one in (_made(made, sizes) for sizes in SIZES) if one is not None]
    found = {}
    for key in KEYS:
        value = plain.get(key)
        if isinstance(value, int | str | float) and value is not False and not _follows(key, several):
            found[key] = value
    period = _period(several)
    return {**found, **({"layer_types": period} if period is not None else {})}


def _made(made: Any, sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """What an instance holds; None where the class refuses these sizes."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        one: dict[str, Any] = made(**sizes).to_dict()
    except (StrictDataclassError, *REFUSALS):
        return None
    return one if all(one.get(key) == value for key, value in sizes.items()) else None


def _follows(key: str, several: list[dict[str, Any]]) -> bool:
    """Whether the value follows from the sizes as pdctl takes it where the key is absent."""
    if key == "head_dim":
        return bool(several) and all(one[key] == one["hidden_size"] // one["num_attention_heads"] for one in several)
    return (
        key == "num_key_value_heads"
        and bool(several)
        and all(one[key] == one["num_attention_heads"] for one in several)
    )


def _period(several: list[dict[str, Any]]) -> dict[str, Any] | None:
    """`{"every": 6, "others": "sliding_attention"}`: every 6th is full; and what the last is, where it is so always."""
    types = [one.get("layer_types") for one in several]
    found = [_period_of(one) for one in types]
    if not found or found[0] is None or any(one != found[0] for one in found):
        return None
    last = any(len(one) % found[0]["every"] and one[-1] in FULL for one in types if one is not None)
    return {**found[0], **({"last": "full_attention"} if last else {})}


def _period_of(types: Any) -> dict[str, Any] | None:
    if not isinstance(types, list | tuple) or not any(kind in FULL for kind in types):
        return None
    every = next(index for index, kind in enumerate(types) if kind in FULL) + 1
    others = {kind for index, kind in enumerate(types[:-1]) if (index + 1) % every}
    regular = all((kind in FULL) == ((index + 1) % every == 0) for index, kind in enumerate(types[:-1]))
    return {"every": every, "others": others.pop()} if every > 1 and len(others) == 1 and regular else None


def main() -> int:
    """0; the table is written anew."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    table: dict[str, Any] = {}
    for name in sorted(CONFIG_MAPPING.keys()):
        try:
            made = CONFIG_MAPPING[name]
        except (ImportError, AttributeError):
            continue
        parts = getattr(made, "sub_configs", None) or {}
        nested = {
            key: part.model_type for key, part in parts.items() if key in NESTED and getattr(part, "model_type", "")
        }
        table[name] = {**({"nested": nested} if nested else {}), **of_class(made)}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in table.items())
    head = f'{{\n "transformers": {json.dumps(transformers.__version__)},\n "classes": {{\n'
    TABLE.write_text(f"{head}{lines}\n }}\n}}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
