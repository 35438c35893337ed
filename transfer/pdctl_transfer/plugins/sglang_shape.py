"""Whether the installed SGLang is what the core's classes stand on (`sglang_table.py`), before the first is given out.

An engine of another shape keeps its own path, with PD3131.
"""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from pdctl_transfer.plugins.sglang_table import (
    ATTRIBUTES,
    KV_ARGS,
    OF_BACKENDS,
    OF_MANAGERS,
    POLLS,
    SHAPES,
    SLICES,
    Names,
    Shape,
)


def unlike(backend: str) -> list[str]:
    """What the installed engine has otherwise; empty where it is as the table says. Imports the engine."""
    found = [fault for shape in (*SHAPES, *OF_BACKENDS[backend]) for fault in _faults(shape)]
    if found:
        return found
    polls = importlib.import_module("sglang.srt.disaggregation.base.conn").KVPoll
    return [
        f"KVPoll.{name} is {getattr(polls, name, None)}"
        for name, value in POLLS.items()
        if vars(polls).get(name) != value
    ]


def unlike_slices() -> list[str]:
    """The same of `SLICES`."""
    return [fault for shape in SLICES for fault in _faults(shape)]


def missing(manager: Any, backend: str) -> list[str]:
    """Attributes that a manager that stands does not have."""
    names = (*ATTRIBUTES, *(f"kv_args.{name}" for name in KV_ARGS), *OF_MANAGERS[backend])
    return [name for name in names if not _has(manager, name)]


def _has(owner: Any, path: str) -> bool:
    first, _, rest = path.partition(".")
    return hasattr(owner, first) and (not rest or _has(getattr(owner, first), rest))


def _faults(shape: Shape) -> Iterator[str]:
    try:
        owner: Any = importlib.import_module(shape.module)
    except ImportError as error:
        yield f"{shape.module}: {error}"
        return
    if shape.name:
        owner = getattr(owner, shape.name, None)
    if owner is None:
        yield f"no {shape.path}"
        return
    for exact, methods in ((True, shape.takes), (False, shape.calls)):
        for name, wanted in methods.items():
            fault = _fault(getattr(owner, name, None), wanted, exact, method=bool(shape.name))
            if fault:
                yield f"{shape.path}.{name}: {fault}"


def _fault(function: Any, wanted: Names, exact: bool, method: bool) -> str:
    if function is None:
        return "is not there"
    try:
        parameters = list(inspect.signature(inspect.unwrap(function)).parameters.values())[1 if method else 0 :]
    except (TypeError, ValueError):
        return "has no signature"
    names = tuple(one.name for one in parameters)
    if exact:
        return "" if names == wanted else f"takes ({', '.join(names)}), not ({', '.join(wanted)})"
    more = [
        one.name for one in parameters[len(wanted) :] if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    if names[: len(wanted)] != wanted or more:
        return f"takes ({', '.join(names)}), not ({', '.join(wanted)})"
    return ""
