"""The launches that one recipe document stands for: itself, or its base with each override put over it.

`override_NAME` is one variant. `zip_override_NAME` is several: of each list the first variant takes the first value,
the second the second, and a value that is no list, or a list of one, is every variant's. `null` takes a key away.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pdctl.errors import InputError

ONE: Final = "override_"
SEVERAL: Final = "zip_override_"


def variants(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Label and document of each launch; a document without overrides is one, its label empty.

    Raises InputError for a base or override that is no mapping, lists of unequal lengths, and keys beside them that
    are neither.
    """
    if "base" not in document:
        yield "", document
        return
    base = _mapping(document["base"], "base")
    for key, value in document.items():
        if key == "base":
            continue
        if not key.startswith((ONE, SEVERAL)):
            raise InputError("stands beside `base` and is no override", where=key)
        over = _mapping(value, key)
        if key.startswith(ONE):
            yield key, _over(base, over)
            continue
        for index in range(_length(over, key)):
            yield f"{key}[{index}]", _over(base, _nth(over, index))
    if len(document) == 1:
        yield "base", base


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"found {type(value).__name__}, expected a mapping", where=key)
    return value


def _length(over: Any, key: str) -> int:
    """How many variants the lists of an override make."""
    lengths = {len(one) for one in _lists(over)}
    if 0 in lengths or len(lengths - {1}) > 1:
        raise InputError(f"its lists have unequal lengths: {sorted(lengths)}", where=key)
    return max(lengths, default=1)


def _lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _lists(one)
    elif isinstance(value, list):
        yield value


def _nth(value: Any, index: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _nth(one, index) for key, one in value.items()}
    if isinstance(value, list):
        return value[index if len(value) > 1 else 0]
    return value


def _over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = _over(below if isinstance(below, Mapping) else {}, value)
        else:
            merged[key] = value
    return merged
