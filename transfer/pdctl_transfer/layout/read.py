"""Manifests in and out: JSON bytes to immutable values and back, with every limit checked before it hurts.

Whatever the bytes are, the answer is a manifest or a ManifestError that names the source, the place and the reason.
Numbers are not judged here: a well-formed manifest that contradicts itself is PD1021 (`algebra.faults`).
"""

import json
from codecs import BOM_UTF8
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec

from pdctl_transfer.errors import ManifestError
from pdctl_transfer.layout.manifest import SCHEMA, Manifest

MAX_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 10**6


class _Head(msgspec.Struct):
    """Looked at first, so that a document of another kind is told so, and not that it lacks a field."""

    schema: Any = None


def read_manifest(path: str | Path) -> Manifest:
    """The manifest in a file. ManifestError where the file cannot be read or holds none."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(str(path), "", error.strerror or str(error)) from error
    except ValueError as error:  # a NUL byte in the name
        raise ManifestError(repr(str(path)), "", str(error)) from error
    return decode_manifest(data, str(path))


def decode_manifest(data: bytes, source: str) -> Manifest:
    """The manifest that `data` encodes. `source` names it in errors: a file, a URL, a peer.

    Raises ManifestError (PD0021): over 64 MiB or 10^6 entries, not JSON, not UTF-8, another schema, a missing or
    mistyped field, a key given twice, a number that JSON does not have.
    """
    if len(data) > MAX_BYTES:
        raise ManifestError(source, "", f"over the limit of {MAX_BYTES >> 20} MiB")
    data = data.removeprefix(BOM_UTF8)  # editors and shells of Windows begin a file with it
    if not data.strip():
        raise ManifestError(source, "", "empty, expected a JSON object")
    _check_schema(data, source)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise _refusal(source, error) from error
    entries = sum(len(component.entries) for stage in manifest.stages for component in stage.components)
    if entries > MAX_ENTRIES:
        raise ManifestError(source, "$.stages", f"{entries} entries, over the limit of {MAX_ENTRIES}")
    _check_strictly(data, source)
    return manifest


def encode_manifest(manifest: Manifest, indent: int = 0) -> bytes:
    """The contract's JSON, byte for byte the same for equal manifests; on one line where `indent` is 0."""
    fields = msgspec.to_builtins(manifest)
    data = msgspec.json.encode({"schema": fields.pop("schema"), **fields})
    return msgspec.json.format(data, indent=indent) if indent else data


def _check_schema(data: bytes, source: str) -> None:
    try:
        schema = msgspec.json.decode(data, type=_Head).schema
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise _refusal(source, error) from error
    if schema != SCHEMA:
        found = "missing" if schema is None else f"found {_short(schema)}"
        raise ManifestError(source, "$.schema", f'{found}, expected "{SCHEMA}"')


def _refusal(source: str, error: Exception) -> ManifestError:
    """The words of msgspec, its path taken out of the sentence."""
    if isinstance(error, RecursionError):
        return ManifestError(source, "", "nested too deeply")
    reason, _, path = str(error).partition(" - at `")
    return ManifestError(source, path.removesuffix("`"), reason)


def _check_strictly(data: bytes, source: str) -> None:
    """What a JSON decoder forgives and an operator should not have to find: a key twice, an infinite number."""

    def once(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ManifestError(source, "", f"the key {_short(twice)} occurs twice in one object")

    def finite(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ManifestError(source, "", f"the number {_short(text)} is out of range")
        return value

    try:
        json.loads(data, object_pairs_hook=once, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise _refusal(source, error) from error


def _short(value: object, most: int = 60) -> str:
    text = json.dumps(value, ensure_ascii=True, default=repr)
    return text if len(text) <= most else text[:most] + "…"
