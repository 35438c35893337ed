"""The keys of a fleet: those that its file names by environment variables, and the router's own for its control API.

No key stands in a fleet file, a command line or a state file; `control` in the fleet's folder is readable by its owner
alone.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pdctl.engines.refusals import startable
from pdctl.errors import InputError
from pdctl.fleet.keys import KEY
from pdctl.fleet.loaded import LoadedFleet

SHOWN: Final = "…"


@dataclass(frozen=True)
class Keys:
    """Who must send what. Nobody, unless said."""

    pools: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By the pool's key in the file."""
    router: str | None = field(default=None, repr=False)
    """What clients send to the router, and the router to engines."""
    control: str | None = field(default=None, repr=False)
    """What a router's list of workers is changed with."""


def read_keys(loaded: LoadedFleet, control: Callable[[], str], environ: Mapping[str, str] = os.environ) -> Keys:
    """The keys that the fleet file names; `control` makes the router's own once they are all right.

    Raises InputError: PD0050 a variable is not set, PD0051 its value is no key, PD0052 a router cannot hold two,
    PD0053 a router asks for none.
    """
    router = loaded.fleet.router
    pools = {
        pool.key: _value(environ, pool.api_key_env, f"{pool.key}.api_key_env", loaded)
        for pool in loaded.pools()
        if pool.api_key_env
    }
    routed = [pool.key for pool in (*loaded.pools("prefill"), *loaded.pools("decode")) if pool.key in pools]
    asked = {"router": _value(environ, router.api_key_env, "router.api_key_env", loaded)} if router.api_key_env else {}
    if asked and not startable(loaded).asks:
        message = f"router.api_key_env: {router.kind} asks its clients for no key"
        hint = "use smg or sglang-router, or put a proxy that asks before it"
        raise InputError(message, where=loaded.where("router.api_key_env"), code="PD0053", hint=hint)
    given = {**asked, **{key: pools[key] for key in routed}}
    first = next(iter(given), None)
    for key, value in given.items():
        if first is not None and value != given[first]:
            message = f"{key}.api_key_env: another key than {first}'s"
            hint = "a router has one key, for its clients and for its engines: name one variable in all of them"
            raise InputError(message, where=loaded.where(f"{key}.api_key_env"), code="PD0052", hint=hint)
    return Keys(pools, given[first] if first else None, control())


def known_keys(loaded: LoadedFleet, control: Callable[[], str], environ: Mapping[str, str] = os.environ) -> Keys:
    """For a plan that is shown, which must not fail for want of a key: a stand-in where one is not set."""
    try:
        return read_keys(loaded, control, environ)
    except InputError as fault:
        if fault.code != "PD0050":
            raise
    named = {pool.key: pool.role for pool in loaded.pools() if pool.api_key_env}
    routed = loaded.fleet.router.api_key_env or set(named.values()) & {"prefill", "decode"}
    return Keys(dict.fromkeys(named, SHOWN), SHOWN if routed else None, control())


def _value(environ: Mapping[str, str], name: str, key: str, loaded: LoadedFleet) -> str:
    value = environ.get(name)
    if not value:
        message = f"{key}: the environment variable {name} is {'empty' if value == '' else 'not set'}"
        hint = f"export {name}=…; the file holds its name only"
        raise InputError(message, where=loaded.where(key), code="PD0050", hint=hint)
    if not KEY.fullmatch(value):
        message = f"{key}: what {name} holds is no key: blanks, line ends or letters beyond ASCII"
        raise InputError(message, where=loaded.where(key), code="PD0051", hint="it may end with a line end")
    return value
