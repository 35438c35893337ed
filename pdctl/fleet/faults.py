"""What pydantic objects to, said as file, line, key, found, expected."""

import difflib
import json
import re
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pdctl.errors import FleetFileError
from pdctl.fleet.model import Fleet
from pdctl.fleet.source import Document, Key, dig
from pdctl.redact import HIDDEN, hide, hide_argv, sounds_secret

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_POOL = "a pool (a mapping), or a list of pools"
_URL = "a URL, or a mapping with a `url`"
_WORDS = {
    "string_pattern_mismatch": "lower-case letters, digits and hyphens, at most 63",
    "too_short": "at least one",
    "string_too_short": "some text",
}


def fault_of(error: ValidationError, document: Document) -> FleetFileError:
    """The first fault in the file's order, the rest in its `others`."""
    faults = sorted((_fault(detail, document) for detail in error.errors(include_url=False)), key=_line)
    first, *others = faults
    first.others = tuple(others)
    return first


def _fault(detail: ErrorDetails, document: Document) -> FleetFileError:
    key = as_written(detail["loc"], document.data)
    dotted = ".".join(map(str, key)) or "the file"
    where = document.where(key)
    match detail["type"]:
        case "extra_forbidden":
            known = _keys_of(detail["loc"][:-1])
            return _unknown(str(key[-1]), dotted, known, where)
        case "missing":
            return FleetFileError(f"{dotted}: missing", where=where, code="PD0005", hint=_describe(detail["loc"]))
    if "[key]" in detail["loc"]:
        message = f"{dotted}: found the key {json.dumps(detail['input'], default=str)}, expected {_expected(detail)}"
        return FleetFileError(message, where=where, code="PD0004")
    found = _shown(dig(document.data, key), key)
    expected = _POOL if _is_pool(detail) else _URL if detail["loc"][-2:-1] == ("urls",) else _expected(detail)
    message = f"{dotted}: found {found}, expected {expected}"
    return FleetFileError(message, where=where, code="PD0004", hint=_suggest(detail, dig(document.data, key), expected))


def _is_pool(detail: ErrorDetails) -> bool:
    """Whether a role stands here: one pool, or a list of them."""
    loc = detail["loc"]
    place = len(loc) == (2 if loc[:1] == ("roles",) else 1)
    return place and loc[0] in ("prefill", "decode", "roles") and detail["type"] == "list_type"


def _shown(value: Any, key: Key) -> str:
    """What was found, short, and not what is secret in it: reports of CI are read by many."""
    if any(isinstance(part, str) and sounds_secret(part) for part in key):
        return HIDDEN
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = hide_argv(value)
    text = hide(json.dumps(value, default=str, ensure_ascii=False))
    return text if len(text) <= 60 else f"{text[:57]}…"


def as_written(loc: tuple[str | int, ...], data: Any) -> Key:
    """A location in the model as a key of the file, where a role's only pool needs no list around it."""
    key: list[str | int] = []
    for part in loc:
        if part == "[key]" or isinstance(data, str):  # a text that stands for a mapping
            break
        if isinstance(part, int) and not isinstance(data, list):
            continue
        key.append(part)
        data = dig(data, (part,))
    return tuple(key)


def _line(fault: FleetFileError) -> int:
    return int((fault.where or "").rpartition(":")[2] or 0)


def _unknown(name: str, dotted: str, known: list[str], where: str) -> FleetFileError:
    close = difflib.get_close_matches(name, known, n=1) or [key for key in known if name in key.split("_")]
    hint = f'did you mean "{close[0]}"?' if close else f"known here: {', '.join(known)}"
    return FleetFileError(f"{dotted}: unknown key", where=where, code="PD0003", hint=hint)


def _expected(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        choices = _choices(detail)
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if kind in ("greater_than_equal", "less_than_equal"):
        return f"a number {'from' if 'ge' in context else 'up to'} {context.get('ge', context.get('le'))}"
    return _EXPECTED.get(kind) or _WORDS.get(kind) or detail["msg"]


def _choices(detail: ErrorDetails) -> list[str]:
    return re.findall(r"'([^']*)'", str(detail.get("ctx", {}).get("expected", "")))


def _suggest(detail: ErrorDetails, found: Any, expected: str) -> str | None:
    if detail["type"] == "literal_error":
        close = difflib.get_close_matches(str(found), _choices(detail), n=1)
        return f'did you mean "{close[0]}"?' if close else None
    if expected == _POOL and found is None:
        return "write {} for a pool that leaves everything to the defaults"
    if expected == "text" and isinstance(found, bool):
        return f'YAML reads this word as {json.dumps(found)}; quote it: "yes", "no", "true", "false"'
    if expected == "a whole number" and isinstance(found, str) and found.strip().isdigit():
        return "write it without quotes"
    return None


def _keys_of(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at this location takes."""
    section = _section(loc)
    return [field.alias or name for name, field in section.model_fields.items()] if section else []


def _describe(loc: tuple[str | int, ...]) -> str | None:
    section = _section(loc[:-1])
    field = section.model_fields.get(str(loc[-1])) if section else None
    return field.description if field else None


def _section(loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The model at a location. List indices and role names do not change it."""
    section: type[BaseModel] | None = Fleet
    for part in loc:
        if section is not None and part in section.model_fields:
            section = _model_in(section.model_fields[str(part)].annotation)
    return section


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
