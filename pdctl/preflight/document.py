"""Captured hosts as a document, `pdctl.facts/v1`: what `preflight` read, to be judged again elsewhere and offline."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from pdctl import __version__
from pdctl.errors import InputError
from pdctl.inputs import read_input
from pdctl.preflight.facts import HostFacts, Software
from pdctl.preflight.snapshot import Snapshot, Unread, label
from pdctl.preflight.wants import RouterWant, Want
from pdctl_topology import Host, choose

SCHEMA: Final = "pdctl.facts/v1"
MAX_BYTES: Final = 64 << 20


class _Seen(Struct, frozen=True):
    """`HostFacts` without what follows from the rest, and with a word for what JSON has no number for."""

    host: Host
    locked_bytes: float | Literal["unlimited"] | None
    shared_memory: int | None
    memory_limit: int | None
    listening: frozenset[int] | None
    port_range: tuple[int, int] | None
    own_addresses: tuple[str, ...]
    clock_offset: tuple[float, float]
    nvidia_driver: str | None


class _Program(Struct, frozen=True):
    """One interpreter; `python` empty for the one that ran pdctl."""

    python: str
    software: Software | None = None
    unread: Unread | None = None


class _Captured(Struct, frozen=True):
    """One host by its name in the fleet file; empty for the machine that captured."""

    name: str
    seen: _Seen | None = None
    unread: Unread | None = None
    programs: tuple[_Program, ...] = ()


class Facts(Struct, frozen=True, kw_only=True):
    """The document. `environment`: variables that decide how bytes move, of the machine that captured."""

    schema: str = SCHEMA
    pdctl: str = __version__
    at: float
    hosts: tuple[_Captured, ...]
    environment: Mapping[str, str] = {}
    own_ports: tuple[int, ...] = ()


def facts_of_snapshot(snapshot: Snapshot, environment: Mapping[str, str], at: float) -> Facts:
    """What was read, as a document."""
    hosts = tuple(_captured(name, found, snapshot) for name, found in snapshot.hosts.items())
    return Facts(at=at, hosts=hosts, environment=environment, own_ports=tuple(sorted(snapshot.own_ports)))


def _captured(name: str, found: HostFacts | Unread, snapshot: Snapshot) -> _Captured:
    programs = tuple(
        _program("" if python == sys.executable else python, software)
        for (host, python), software in snapshot.software.items()
        if host == name
    )
    if isinstance(found, Unread):
        return _Captured(name, unread=found, programs=programs)
    values = {field: getattr(found, field) for field in _Seen.__struct_fields__}
    if found.locked_bytes == math.inf:
        values["locked_bytes"] = "unlimited"
    return _Captured(name, _Seen(**values), programs=programs)


def _program(python: str, found: Software | Unread) -> _Program:
    return _Program(python, unread=found) if isinstance(found, Unread) else _Program(python, found)


def encode(facts: Facts) -> bytes:
    """As text for people and programs."""
    return msgspec.json.format(msgspec.json.encode(facts, order="deterministic"), indent=1) + b"\n"


def decode(data: bytes, path: str) -> Facts:
    """Read a document. Raises InputError (PD0026) with the path in the file, and the key in the document."""
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.schema != SCHEMA:
            message = f"$.schema: found {head.schema!r}, this version reads {SCHEMA!r}"
            raise InputError(message, where=path, code="PD0026", hint="capture the hosts again with `--save-facts`")
        return msgspec.json.decode(data, type=Facts)
    except msgspec.ValidationError as error:
        reason, _, key = str(error).partition(" - at ")
        raise _unusable(path, f"{key.strip('`') or '$'}: {reason}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unusable(path, f"not JSON: {error}") from None


class _Head(Struct, frozen=True):
    schema: str


def _unusable(path: str, reason: str) -> InputError:
    hint = "`pdctl preflight --save-facts FILE` writes such a document"
    return InputError(reason, where=path, code="PD0026", hint=hint)


def read_facts_files(paths: Sequence[Path]) -> tuple[Facts, ...]:
    """All of them. Raises InputError: PD0002 cannot be read, PD0026 unusable, or a host is in two of them."""
    found = tuple(_read(path) for path in paths)
    places: dict[str, Path] = {}
    for path, facts in zip(paths, found, strict=True):
        for name in map(_known_as, facts.hosts):
            if name in places:
                where = "it twice" if places[name] == path else f"{places[name]} as well"
                raise _unusable(str(path), f"$.hosts: {name} is in {where}")
            places[name] = path
    return found


def _read(path: Path) -> Facts:
    data = read_input(path, MAX_BYTES)
    if len(data) > MAX_BYTES:
        raise _unusable(str(path), f"larger than {MAX_BYTES >> 20} MiB")
    return decode(data, str(path))


def _known_as(one: _Captured) -> str:
    return one.name or (one.seen.host.name if one.seen is not None else label(""))


def snapshot_from(documents: Sequence[Facts], wants: Iterable[Want], router: RouterWant | None) -> Snapshot:
    """What the documents say of the hosts that are wanted; of others that they do not have, that it is not known.

    A host may have been captured by the fleet's machine under its name, or by itself.
    """
    wants = tuple(wants)
    here = [""] if router is not None else []
    names = list(dict.fromkeys([*here, *(want.host for want in wants)]))
    captured = {name: one for name in names if (one := _of(documents, name)) is not None}
    hosts = {name: _host(name, captured.get(name)) for name in names}
    software = {(want.host, want.python): _software(want, captured.get(want.host)) for want in wants}
    own = frozenset(port for facts in documents for port in facts.own_ports)
    return Snapshot(wants, hosts, software, router, own)


def _of(documents: Sequence[Facts], name: str) -> _Captured | None:
    everyone = [one for facts in documents for one in facts.hosts]
    exact = next((one for one in everyone if one.name == name), None)
    if exact is not None or not name:
        return exact
    return next((one for one in everyone if one.seen and name.split(".")[0] == one.seen.host.name.split(".")[0]), None)


def _host(name: str, one: _Captured | None) -> HostFacts | Unread:
    if one is None or one.seen is None:
        hint = "capture it with `pdctl preflight --save-facts FILE`"
        missing = Unread("it is not in the facts that were given", hint)
        return one.unread if one is not None and one.unread is not None else missing
    values = {field: getattr(one.seen, field) for field in _Seen.__struct_fields__}
    locked = one.seen.locked_bytes
    values["locked_bytes"] = math.inf if locked == "unlimited" else locked
    return HostFacts(name=name, choice=choose(one.seen.host), **values)


def _software(want: Want, one: _Captured | None) -> Software | Unread:
    programs = {program.python or sys.executable: program for program in (one.programs if one else ())}
    found = programs.get(want.python)
    known = (found.software or found.unread) if found is not None else None
    return known or Unread(f"{want.python} is not in the facts that were given")


def hosts_in(documents: Sequence[Facts]) -> list[str]:
    """The hosts of the documents by the names that they have there."""
    return [one.name for facts in documents for one in facts.hosts]


def environment_of(documents: Sequence[Facts]) -> Mapping[str, str]:
    """Variables of the machine that captured; of several the first's."""
    return documents[0].environment if documents else {}
