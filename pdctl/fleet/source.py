"""YAML with the line of every key: plain data for the model, and a map from dotted key to line.

Read from PyYAML's node tree rather than through its constructors, because those drop the line numbers, let the last of
two equal keys win in silence, and expand aliases without bound.
"""

import json
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from pdctl.errors import FleetFileError
from pdctl.inputs import read_input

MAX_BYTES = 1 << 20
MAX_NODES = 10_000
MAX_DEPTH = 100

_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_PLAIN_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*|[0-9]*\.[0-9]*(e[-+]?[0-9]+)?|\.inf|\.nan)", re.IGNORECASE)

Key = tuple[str | int, ...]

#: Byte order marks, the longer first.
_MARKS = {BOM_UTF32_LE: "UTF-32", BOM_UTF32_BE: "UTF-32", BOM_UTF16_LE: "UTF-16", BOM_UTF16_BE: "UTF-16"}


class Document(Struct):
    """One parsed file: its data, and the line (from 1) at which each key stands."""

    path: str
    data: Any
    lines: dict[Key, int] = {}

    def where(self, key: Key) -> str:
        """`file:line` of the key, or of the nearest mapping around it."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{self.path}:{self.lines.get(key, 1)}"


def read(path: Path) -> bytes:
    """The file's bytes, at most one more than `MAX_BYTES`. Raises FleetFileError (PD0002)."""
    return read_input(path, MAX_BYTES, FleetFileError, missing="`pdctl init` writes one to start from")


def parse(content: bytes, path: str) -> Document:
    """Parse one YAML document. Raises FleetFileError: PD0006 for what is not YAML, PD0007 for a repeated key."""
    if len(content) > MAX_BYTES:
        raise FleetFileError(f"larger than {MAX_BYTES >> 10} KiB", where=path, code="PD0006")
    text = _decode(content, path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            raise FleetFileError("the file is empty", where=path, code="PD0006")
        document = Document(path, None)
        document.data = _Reader(loader, document).value(root, ())
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, path) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the control character {_named(error.character)}, which YAML does not take"
        hint = 'where a value needs it, write it as an escape in double quotes: "\\e"'
        raise FleetFileError(message, where=f"{path}:{line}", code="PD0006", hint=hint) from None
    except yaml.YAMLError as error:
        raise FleetFileError(" ".join(str(error).split()), where=path, code="PD0006") from error
    except RecursionError:
        raise FleetFileError("nested too deeply", where=path, code="PD0006") from None
    return document


def _decode(content: bytes, path: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        name = next((name for mark, name in _MARKS.items() if content.startswith(mark)), None)
        message = f"the file is {name}" if name else f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise FleetFileError(message, where=f"{path}:{line}", code="PD0006", hint="save the file as UTF-8") from None


def _named(character: Any) -> str:
    """U+001B, of a character or its number."""
    return f"U+{character if isinstance(character, int) else ord(character):04X}"


def _syntax(error: yaml.MarkedYAMLError, path: str) -> FleetFileError:
    mark = error.problem_mark or error.context_mark
    where = f"{path}:{mark.line + 1}" if mark else path
    problem = error.problem or error.context or "not YAML"
    hint = None
    if "'\\t'" in problem:
        problem, hint = "a tab where YAML takes only spaces", "indent with spaces"
    elif "single document" in (error.context or ""):
        problem, hint = "a second document", "one fleet a file"
    message = problem if isinstance(error, _Excess) else f"not YAML: {problem}"
    return FleetFileError(message, where=where, code="PD0006", hint=hint)


class _Loader(yaml.SafeLoader):
    """Counts what it opens and holds on the way, so that neither depth nor mass is paid for before it is refused."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._composed = 0

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        self._refuse_depth(self.flow_level)
        super().fetch_flow_collection_start(kind)

    def add_indent(self, column: int) -> bool:
        self._refuse_depth(len(self.indents))
        return bool(super().add_indent(column))

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._composed += 1
        if self._composed > MAX_NODES:
            raise _Excess(problem=f"holds more than {MAX_NODES} values", problem_mark=self.get_mark())
        return super().compose_node(parent, index)

    def _refuse_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise _Excess(problem="nested too deeply", problem_mark=self.get_mark())


class _Excess(yaml.MarkedYAMLError):
    """YAML, and more of it than any fleet has."""


class _Reader:
    """Turns nodes into plain data, and notes the lines on the way."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._open: set[int] = set()
        self._nodes = 0

    def value(self, node: yaml.Node, key: Key) -> Any:
        with self._inside(node):
            if isinstance(node, yaml.MappingNode):
                pairs = self._pairs(node, key).items()
                return {name: self._at(pair[0], pair[1], (*key, name)) for name, pair in pairs}
            if isinstance(node, yaml.SequenceNode):
                return [self._at(item, item, (*key, index)) for index, item in enumerate(node.value)]
            self._refuse_old_number(node, key)
            return self._constructed(node, key)

    def _refuse_old_number(self, node: yaml.Node, key: Key) -> None:
        """YAML 1.1 reads 020 as 16, 1:30 as 90 and 1_6 as 16: whoever wrote that meant something else."""
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _NUMBERS or node.style is not None:
            return
        if _PLAIN_NUMBER.fullmatch(node.value):
            return
        read = self._constructed(node, key)
        message = f"{_dotted(key)}: found {node.value}, which YAML reads as {read}"
        hint = f'write {read}, or "{node.value}" in quotes where text is meant'
        raise self._fault(node, message, "PD0004", hint)

    def _constructed(self, node: yaml.Node, key: Key) -> Any:
        """What YAML makes of a node; numbers of thousands of digits and days that no month has are refused."""
        try:
            return self._loader.construct_object(node, deep=True)
        except (ValueError, OverflowError):
            found = str(node.value)
            shown = found if len(found) <= 40 else f"{found[:37]}… ({len(found)} characters)"
            kind = node.tag.rpartition(":")[2]
            raise self._fault(
                node, f"{_dotted(key)}: found {shown}, which is no {kind} that can be read", "PD0004"
            ) from None

    def _at(self, mark: yaml.Node, node: yaml.Node, key: Key) -> Any:
        self._document.lines[key] = _line(mark)
        return self.value(node, key)

    def _pairs(self, node: yaml.MappingNode, key: Key) -> dict[Any, tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes by key; `<<` brings in those of other mappings, under the mapping's own."""
        own: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        merged: dict[Any, tuple[yaml.Node, yaml.Node]] = {}
        for name_node, value_node in node.value:
            if name_node.tag == "tag:yaml.org,2002:merge":
                for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    merged = {**self._merged(source, key), **merged}
                continue
            name = self._constructed(name_node, key)
            if not isinstance(name, Hashable):
                raise self._fault(name_node, "a key must be a word", "PD0006")
            if not isinstance(name, str):
                message = f"{_dotted(key)}: found the key {json.dumps(name, default=str)}, expected text"
                raise self._fault(name_node, message, "PD0004", "quote it")
            if name in own:
                first = _line(own[name][0])
                raise self._fault(name_node, f"{name}: given twice, first in line {first}", "PD0007")
            own[name] = (name_node, value_node)
        return {**merged, **own}

    def _merged(self, source: yaml.Node, key: Key) -> dict[Any, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(source, yaml.MappingNode):
            raise self._fault(source, "`<<` takes a mapping or a list of mappings", "PD0006")
        with self._inside(source):
            return self._pairs(source, key)

    @contextmanager
    def _inside(self, node: yaml.Node) -> Iterator[None]:
        """Bound what aliases expand to, and refuse those that contain themselves."""
        if id(node) in self._open:
            raise self._fault(node, "an alias that contains itself", "PD0006")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise self._fault(node, f"expands to more than {MAX_NODES} values", "PD0006")
        self._open.add(id(node))
        yield
        self._open.discard(id(node))

    def _fault(self, node: yaml.Node, message: str, code: str, hint: str | None = None) -> FleetFileError:
        return FleetFileError(message, where=f"{self._document.path}:{_line(node)}", code=code, hint=hint)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key)) or "the file"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def dig(data: Any, key: Key) -> Any:
    """The value at `key`, or None where there is none."""
    for part in key:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data
