"""Names and texts of a fleet file that no host, shell or kernel would take: told with their line, not met at the start.

A value passes through to a program; what is judged here is only whether it can be such a value at all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pdctl.errors import FleetFileError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.urls import is_host

_USER: Final = re.compile(r"[\w.-]+", re.ASCII)
_DEVICE: Final = re.compile(r"[A-Za-z0-9][\w.:-]*(/[0-9]+)*")
"""0, mlx5_0, mlx5_0:1, GPU-8932f937-…, MIG-GPU-…/1/0."""
_USUAL_ROLES: Final = ("prefill", "decode", "aggregate", "encode")
RESERVED: Final = ("PYTHONSAFEPATH", "PYTHONHOME")
"""Variables that decide which code our own Pythons load."""
OURS: Final = "PDCTL_"
MAY_BE_GIVEN: Final = ("PDCTL_TRANSFER_SECRET", "PDCTL_PLUGIN", "PDCTL_DEBUG")
"""Ours, and for operators to set."""


def judge_texts(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Every name and text that cannot be one, in no order."""
    fleet = loaded.fleet
    yield from _nul(loaded, fleet.model_dump(by_alias=True), ())
    yield from _empty(loaded)
    yield from _hosts(loaded)
    yield from _devices(loaded)
    yield from _roles(loaded)
    for key, env in (("router.env", fleet.router.env), *((f"{pool.key}.env", pool.env) for pool in loaded.pools())):
        yield from _environment(loaded, key, env)


def _wrong(loaded: LoadedFleet, key: str, found: str, expected: str, hint: str | None = None) -> FleetFileError:
    message = f"{key}: found {found!r}, expected {expected}"
    return FleetFileError(message, where=loaded.where(key), code="PD0004", hint=hint)


def _nul(loaded: LoadedFleet, value: Any, key: tuple[str | int, ...]) -> Iterator[FleetFileError]:
    """No program can be given a NUL, neither in its words nor in its environment."""
    if isinstance(value, str) and "\0" in value:
        yield _wrong(loaded, loaded.as_key(key), value, "text without a NUL character")
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _nul(loaded, one, (*key, name))
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _nul(loaded, one, (*key, index))


def _empty(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """An empty path means the current folder to every program, and an empty name nothing."""
    fleet = loaded.fleet
    texts = {"model.path": fleet.model.path, "model.name": fleet.model.name}
    for pool in loaded.pools():
        texts |= {f"{pool.key}.environment": pool.environment, f"{pool.key}.image": pool.image}
        texts |= {f"{pool.key}.kv_cache_dtype": pool.kv_cache_dtype}
    for key, text in texts.items():
        if text is not None and not text.strip():
            yield _wrong(loaded, key, text, "some text")


def _hosts(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    router = loaded.fleet.router
    if not is_host(router.host):
        yield _wrong(loaded, "router.host", router.host, "an address or a host name", "127.0.0.1, or 0.0.0.0 for all")
    for pool in loaded.pools():
        if "hosts" in pool.model_fields_set and not pool.hosts:
            hint = "leave `hosts` out for this host"
            yield FleetFileError(
                f"{pool.key}.hosts: found [], expected at least one",
                where=loaded.where(f"{pool.key}.hosts"),
                code="PD0004",
                hint=hint,
            )
        for index, host in enumerate(pool.hosts):
            if not is_reached(host):
                yield _wrong(loaded, f"{pool.key}.hosts.{index}", host, "a host name or an address")
        for index, host in enumerate(pool.dist_init_address):
            if not is_host(host) or "@" in host:
                key = f"{pool.key}.dist_init_address.{index}"
                yield _wrong(loaded, key, host, "a host name or an address", "the port is `ports.dist_init`")


def is_reached(text: str) -> bool:
    """Whether a text can be a host as SSH takes it: `user@` before a name or an address."""
    user, at, host = text.rpartition("@")
    return is_host(host) and (not at or bool(_USER.fullmatch(user)))


def _devices(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    lists = {"transfer.devices": loaded.fleet.transfer.devices}
    lists |= {f"{pool.key}.devices": pool.devices for pool in loaded.pools()}
    for key, devices in lists.items():
        expected = "the name of one HCA, such as mlx5_0" if key.startswith("transfer") else "one accelerator, such as 0"
        for index, device in enumerate(devices):
            if not _DEVICE.fullmatch(device):
                hint = "one list item a device" if "," in device else None
                yield _wrong(loaded, f"{key}.{index}", device, expected, hint)


def misplaced(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Roles that have their own place in the file."""
    for role in loaded.fleet.roles:
        if role in ("prefill", "decode"):
            message, hint = f"roles.{role}: {role} has its own place", f"write `{role}:` at the top of the file"
            yield FleetFileError(message, where=loaded.where(f"roles.{role}"), code="PD0004", hint=hint)


def _roles(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """The set of roles is open, but not for slips of the pen."""
    for role in loaded.fleet.roles:
        near = get_close_matches(role, _USUAL_ROLES, n=1, cutoff=0.8)
        if near and role not in _USUAL_ROLES:
            key, hint = f"roles.{role}", f'did you mean "{near[0]}"?'
            yield FleetFileError(f"{key}: unknown role", where=loaded.where(key), code="PD0004", hint=hint)


def _environment(loaded: LoadedFleet, key: str, names: Iterable[str]) -> Iterator[FleetFileError]:
    """PD0034: names that no environment can hold, and those by which pdctl knows or guards its processes."""
    for name in names:
        where = loaded.where(f"{key}.{name}") if "." not in name else loaded.where(key)
        if not name or "=" in name or any(character.isspace() or not character.isprintable() for character in name):
            message, hint = f"{key}: found {name!r}, which no environment can hold", "NAME: value, one variable a line"
        elif name in RESERVED or (name.startswith(OURS) and name not in MAY_BE_GIVEN):
            message, hint = f"{key}: {name} is set by pdctl", "leave it out"
        else:
            continue
        yield FleetFileError(message, where=where, code="PD0034", hint=hint)
