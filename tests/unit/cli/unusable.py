"""Thirty kinds of input that no command can use, each made in a folder, and the command lines that meet them."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

FLEET = (
    "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
    "transfer: {backend: mooncake, protocol: tcp}\nprefill: {page_size: 16}\ndecode: {page_size: 16}\n"
)


def _text(content: str | bytes) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode()) and None  # type: ignore[return-value]


def _with(old: str, new: str) -> Callable[[Path], None]:
    assert old in FLEET
    return _text(FLEET.replace(old, new, 1))


def _socket(path: Path) -> None:
    """By its name alone: the whole path may be longer than a socket's may be."""
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(before)


#: What lies there, by the kind of fault. None: nothing does.
KINDS: dict[str, Callable[[Path], None] | None] = {
    "absent": None,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("nowhere"),
    "fifo": os.mkfifo,
    "socket": _socket,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
    "unending": lambda path: path.symlink_to("/dev/urandom"),
    "empty": _text(""),
    "blank": _text(" \n\t\n# nothing\n"),
    "binary": _text(bytes(range(256)) * 8),
    "utf16": _text(FLEET.encode("utf-16")),
    "utf32": _text(FLEET.encode("utf-32")),
    "latin1": _text(FLEET.replace("name: f", "name: é").encode("latin-1")),
    "control": _text(FLEET + 'x: "\x1b]0;PWNED\x07"\n'),
    "escapes": _text(FLEET + '"x\\u202e": "\\e]0;PWNED\\a"\n'),
    "cut": _text(FLEET[:60] + "{"),
    "deep flow": _text("[" * 10_000),
    "deep block": _text("- " * 10_000),
    "deep json": _text('{"schema": ' + "[" * 100_000),
    "wide": _text("a: [" + "1," * 50_000 + "]\n"),
    "keys": _text(FLEET + "".join(f"k{n}: 1\n" for n in range(2_000))),
    "aliases": _text(
        "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"{n}: &{n} [{'*' + (chr(ord(n) - 1)) + ','}*a]\n" for n in "bcdefg")
    ),
    "bomb": _text("".join(f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 9 if n else ['1'] * 9)}]\n" for n in range(9))),
    "huge number": _with("page_size: 16", f"page_size: {'9' * 5000}"),
    "big number": _with("page_size: 16", "page_size: 99999999999999999999999999999"),
    "not a number": _with("page_size: 16", "page_size: .nan"),
    "long name": _with("name: f", f"name: {'x' * 5000}"),
    "unknown key": _with("page_size", "page_sise"),
    "wrong kind": _with("{page_size: 16}", "[[[]]]"),
    "tag": _text("schema: !!python/object/apply:os.system ['true']\n"),
    "list": _text("- 1\n- 2\n"),
    "json of another kind": _text(json.dumps({"schema": "pdctl.report/v1", "findings": []})),
    "json without end": _text('{"schema": "pdctl.layout/v1", "role": "prefill", '),
    "megabytes": _text(FLEET + "# " + "x" * (3 << 20) + "\n"),
    "one long line": _text("x" * (1 << 17)),
}

#: Every command that takes a file or a name, and the forms of its output; `{}` is the input.
COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "check": (["check", "{}"], ("table", "short", "json", "junit", "sarif")),
    "preflight": (["preflight", "{}"], ("table", "short", "json", "junit", "sarif")),
    "layout": (["layout", "{}", "--role", "prefill"], ("table", "json")),
    "plan": (["plan", "{}"], ("table", "json", "ndjson")),
    "up": (["up", "{}"], ("table", "json")),
    "up --plan": (["up", "{}", "--plan"], ("table", "json")),
    "status": (["status", "{}"], ("table", "json")),
    "down": (["down", "{}"], ("table", "json")),
    "restart": (["restart", "{}"], ("table", "json")),
    "logs": (["logs", "{}"], ("",)),
}

#: Kinds with a name that can be read: `status`, `down` and `logs` need no more, whatever else is wrong with the file.
NAMED = ("escapes", "keys", "big number", "not a number", "unknown key", "wrong kind")
BY_NAME = {"status": 3, "down": 0, "logs": 0}

#: The documents that a form promises.
DOCUMENTS = ("json", "junit", "sarif")
