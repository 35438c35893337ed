"""The line of a place in a JSON text, for errors that know a path or a byte: `$.stages[0].components[1]`."""

import re
from typing import Final

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\],]')
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_LARGEST: Final = 4 << 20
"""Bytes of a text that is looked through: a line is a help, and no reason to wait."""


def line_of(data: bytes, path: str, reason: str = "") -> int | None:
    """The line (from 1) of the byte that the reason names, else of the path or the nearest thing around it."""
    if len(data) > _LARGEST:
        return None
    named = _BYTE.search(reason)
    at = int(named[1]) if named else _offset_of(data, path)
    return None if at is None else data.count(b"\n", 0, at) + 1


def _offset_of(data: bytes, path: str) -> int | None:
    steps: list[str | int] = [int(index) if index else name for name, index in _STEP.findall(path)]
    found: int | None = None
    deepest = 0
    stack: list[str | int | None] = []
    for token in _TOKEN.finditer(data):
        text = token[0]
        if text in (b"{", b"["):
            stack.append(0 if text == b"[" else None)
        elif text in (b"}", b"]"):
            del stack[-1:]
            continue
        elif text == b"," and stack and isinstance(stack[-1], int):
            stack[-1] += 1
        elif text.startswith(b'"') and stack and not isinstance(stack[-1], int) and _is_key(data, token.end()):
            stack[-1] = text[1:-1].decode("utf-8", "replace")
        else:
            continue
        if len(stack) > deepest and stack == steps[: len(stack)]:
            deepest, found = len(stack), token.end() + _blanks(data, token.end())
            if deepest == len(steps):
                break
    return found


def _blanks(data: bytes, at: int) -> int:
    """An element may begin some lines below its bracket or comma."""
    ahead = data[at : at + 256]
    return len(ahead) - len(ahead.lstrip())


def _is_key(data: bytes, end: int) -> bool:
    return data[end : end + 64].lstrip().startswith(b":")
