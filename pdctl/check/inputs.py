"""Arguments of `pdctl check` into groups: a manifest is a group of one, a fleet file one group a pool."""

import sys
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pdctl.check.groups import Group
from pdctl.check.lines import sources
from pdctl.check.places import line_of
from pdctl.errors import InputError
from pdctl.inputs import read_input
from pdctl_transfer.errors import ManifestError
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.layout.read import MAX_BYTES, decode_manifest
from pdctl_transfer.rules import Evidence, Side

ROLES: Final[tuple[Role, Role]] = ("prefill", "decode")
MAX_PAIRS: Final = 10**6
DASH: Final = Path("-")
STDIN: Final = Path("stdin")


def read_bytes(path: Path) -> bytes:
    """The file, or standard input for `-`, up to one byte more than a manifest may have.

    InputError (PD0002) where it cannot be read, PD0041 where it is no file.
    """
    return sys.stdin.buffer.read(MAX_BYTES + 1) if path == DASH else read_input(path, MAX_BYTES)


def shown(path: Path) -> Path:
    """What reports call a file: standard input has no name of its own."""
    return STDIN if path == DASH else path


def is_manifest(data: bytes) -> bool:
    """Whether the bytes are meant as a manifest: a JSON object that does not call itself a fleet."""
    return data.removeprefix(BOM_UTF8).lstrip().startswith(b"{") and b"pdctl.fleet/" not in data[:4096]


def manifest_group(data: bytes, path: Path) -> Group:
    """A manifest as a group, named after its file. Raises ManifestError."""
    manifest = manifest_of(data, str(path))
    origins: dict[str, Evidence] = sources(data, str(path))
    origins["manifest"] = Evidence(str(path), "")
    return Group(manifest.role, path.stem, (path.stem,), (Side(manifest, path.stem, origins),))


def manifest_of(data: bytes, source: str) -> Manifest:
    """The manifest of a file. Raises ManifestError, with the line where that can be told."""
    try:
        return decode_manifest(data, source)
    except ManifestError as error:
        line = line_of(data, error.path, error.reason)
        raise ManifestError(f"{source}:{line}" if line else source, error.path, error.reason) from error


def require_few_pairs(groups: Sequence[Group], where: str) -> None:
    """InputError (exit 2) for more pairs than a report can list."""
    prefills, decodes = (sum(len(group.members) for group in groups if group.role == role) for role in ROLES)
    if prefills * decodes > MAX_PAIRS:
        hint = "lower `replicas`: equal engines are judged once, however many there are"
        raise InputError(f"{prefills} × {decodes} pairs, over the limit of {MAX_PAIRS}", where=where, hint=hint)


def require_both_roles(groups: Sequence[Group], where: str) -> None:
    """InputError (exit 2) unless there is a prefill and a decode side."""
    roles = {group.role for group in groups}
    if not roles:
        raise InputError("no prefill and no decode engine in it", where=where)
    if len(roles) == 1:
        (role,) = roles
        other = "decode" if role == "prefill" else "prefill"
        what = f"two manifests of one role: all are {role}" if len(groups) > 1 else f"only a {role} side"
        raise InputError(
            f"{what}; a pair needs a {other} side too",
            where=where,
            hint=f"give the {other} side as well",
        )
