"""An engine's settings, as a recipe writes them, into command line words."""

import json
from collections.abc import Mapping
from typing import Any

from pdctl.flags import Table


def names(table: Table, settings: Mapping[str, Any]) -> dict[str, str]:
    """The key of each flag that the settings name: `--tensor-parallel-size` → `tp-size`. Unknown ones as spelled."""
    found = {}
    for key in settings:
        spelled = f"--{key.replace('_', '-')}"
        flag = table.flag(spelled)
        found[flag.name if flag else spelled] = key
    return found


def words(key: str, value: Any) -> list[str]:
    """One setting as words: true is the flag alone, a list its values, a mapping JSON. Not for false and null."""
    flag = f"--{key.replace('_', '-')}"
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    text = json.dumps(value) if isinstance(value, Mapping) else str(value)
    # A value such as -1 would be read as a flag of its own.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]
