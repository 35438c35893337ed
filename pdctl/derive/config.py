"""Reading a model's config.json: every value checked, every complaint names the key.

A key that is missing, of the wrong type or out of range is a `ConfigError`; nothing is guessed. Multimodal configs
nest the language model's keys; `Config.text` finds them, and a key keeps its full path in messages.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from pdctl.errors import ConfigError, MalformedConfigError
from pdctl_transfer.layout.digest import NESTED

#: Larger than any real size, small enough that no product of a few of them is absurd.
MAX_SIZE: Final = 2**24
MAX_LAYERS: Final = 4096


class Config:
    """A mapping with a name for messages. `path` is the dotted prefix of its keys."""

    def __init__(self, data: Mapping[str, Any], source: str, path: str = "") -> None:
        self.data = data
        self.source = source
        self.path = path

    def fail(self, key: str, reason: str, hint: str | None = None) -> NoReturn:
        """Raise a ConfigError that names `key` with its full path."""
        raise ConfigError(f"{self.path}{key}: {reason}", where=self.source, hint=hint)

    def wrong(self, key: str, reason: str) -> NoReturn:
        """Raise for a value of the wrong type or out of range: a mistake, and no model that is not known yet."""
        raise MalformedConfigError(f"{self.path}{key}: {reason}", where=self.source)

    def has(self, key: str) -> bool:
        """Whether the key is present with a value; null is the same as absent."""
        return self.data.get(key) is not None

    def get(self, key: str) -> Any:
        """The raw value, or None."""
        return self.data.get(key)

    def size(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE) -> int:
        """A whole number in [least, most]. Without a default the key is required."""
        value = self.data.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing; the layout depends on it")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, f"found {_shown(value)}, expected a whole number")
        if not least <= value <= most:
            self.wrong(key, f"found {value}, expected {least} to {most}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; 0 and 1 count."""
        value = self.data.get(key)
        if value is None:
            return default
        if value not in (True, False):
            self.wrong(key, f"found {_shown(value)}, expected true or false")
        return bool(value)

    def word(self, key: str) -> str | None:
        """A string, or None where absent."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, str):
            self.wrong(key, f"found {_shown(value)}, expected a string")
        return value

    def sizes(self, key: str, *, least: int = 0, length: int | None = None) -> tuple[int, ...]:
        """A list of whole numbers of at least `least`, at least `length` long where that is given."""
        return tuple(self._items(key, int, "whole numbers", length, least))

    def words(self, key: str, *, length: int | None = None) -> tuple[str, ...]:
        """A list of strings, at least `length` long where that is given."""
        return tuple(self._items(key, str, "strings", length, None))

    def child(self, key: str) -> "Config":
        """The mapping under `key`."""
        value = self.data.get(key)
        if not isinstance(value, Mapping):
            self.wrong(key, f"found {_shown(value)}, expected an object")
        return Config(value, self.source, f"{self.path}{key}.")

    def text(self) -> "Config":
        """The language model's part: a nested config where there is one, else this one."""
        for key in NESTED:
            if isinstance(self.data.get(key), Mapping):
                return self.child(key).text()
        return self

    def _items(self, key: str, kind: type, what: str, length: int | None, least: int | None) -> Sequence[Any]:
        value = self.data.get(key)
        if not isinstance(value, list | tuple):
            self.wrong(key, f"found {_shown(value)}, expected a list of {what}")
        if length is not None and len(value) < length:
            self.fail(key, f"has {len(value)} items, expected one for each of the {length} layers")
        for place, item in enumerate(value):
            if not isinstance(item, kind):
                self.wrong(f"{key}[{place}]", f"found {_shown(item)}, expected {what}")
            if least is not None and isinstance(item, int) and not least <= item <= MAX_SIZE:
                self.wrong(f"{key}[{place}]", f"found {item}, expected {least} to {MAX_SIZE}")
        return value


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
