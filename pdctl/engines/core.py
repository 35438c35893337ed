"""The transfer core inside the real engines: how each is told, and what of a fleet file says nothing to them.

SGLang is told by variables; its plugin chooses for each pair at the handshake. vLLM's connector is fixed when the
engine starts, so its config names ours on both sides or on neither.
"""

import json
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pdctl.engines.base import Instance, Unread
from pdctl.errors import FleetFileError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Fleet, Pool
from pdctl_transfer.plugins.names import CORE as VARIABLE
from pdctl_transfer.plugins.names import OPTIONS as OPTIONS
from pdctl_transfer.plugins.names import SECRET as SECRET
from pdctl_transfer.rules.pair import CORE_CONNECTOR

REGISTRY: Final = "registry"
"""The port at which decode ranks find prefill's, where the engine has none of its own for that."""
CONNECTOR: Final = CORE_CONNECTOR
MODULE: Final = "pdctl_transfer.plugins.vllm_core"
SIDES: Final = ("prefill", "decode")


def by_core(instance: Instance) -> bool:
    """Whether the core carries what this engine of vLLM sends or takes: as the plan decided, else by the file alone."""
    if instance.role not in SIDES:
        return False
    return all_by_core(instance.fleet) if instance.by_core is None else instance.by_core


def all_by_core(fleet: Fleet) -> bool:
    """Whether every side says `pdctl`: what needs no look at layouts."""
    return all(pool.core == "pdctl" for role in SIDES for pool in fleet.pools(role))


def has_core(engine: str, pool: Pool) -> bool:
    """Whether the pool's engines may move state by the core, and so share the fleet's secret."""
    return pool.role in SIDES and (engine == "reference" or pool.core != "engine")


def environment_of(instance: Instance) -> dict[str, str]:
    """What SGLang's plugin is told; nothing where the engine's own path is the only one."""
    if instance.pool.core == "engine":
        return {}
    session = instance.fleet.transfer.session
    return {VARIABLE: instance.pool.core, **({OPTIONS: _compact(session)} if session else {})}


def said(instance: Instance) -> str:
    """What vLLM's transfer config comes from, for who reads the command line."""
    if by_core(instance):
        return f"{CONNECTOR}: the transfer core carries, NIXL's connector stands by (core: {instance.pool.core})"
    return f"the engine's own connector, although core: {instance.pool.core} is said; `pdctl check` says why"


def connector_config(instance: Instance) -> dict[str, Any]:
    """The part of vLLM's transfer config that names our connector and says what it is given."""
    transfer = instance.fleet.transfer
    given: dict[str, Any] = {"fabric": transfer.backend, "protocol": transfer.protocol, "session": transfer.session}
    if transfer.devices and transfer.backend == "mooncake":
        given["device"] = ",".join(transfer.devices)
    if REGISTRY in instance.ports:
        given = {"registry_host": instance.host, "registry_port": instance.ports[REGISTRY], **given}
    extra = {"pdctl": given}
    return {"kv_connector": CONNECTOR, "kv_connector_module_path": MODULE, "kv_connector_extra_config": extra}


def unread_core(fleet: Fleet, pool: Pool, reader: str, hint: str) -> Iterator[Unread]:
    """`transfer.core` and `transfer.session` for an engine that has one way only."""
    if pool.role in SIDES and "core" in fleet.transfer.model_fields_set:
        yield Unread("transfer.core", reader, hint)
    if pool.transfer is not None and pool.transfer.core is not None:
        yield Unread(f"{pool.key}.transfer.core", reader, hint)
    if pool.role in SIDES and fleet.transfer.session:
        yield Unread("transfer.session", reader, hint)


def unread_session(fleet: Fleet, pool: Pool) -> Iterator[Unread]:
    """`transfer.session` where no engine has a core, and a pool's word where the pool moves nothing."""
    if fleet.transfer.session and all(one.core == "engine" for role in SIDES for one in fleet.pools(role)):
        yield Unread("transfer.session", "an engine's own transfer", "write `core: pdctl` or `auto`, or leave it out")
    if pool.role not in SIDES and pool.transfer is not None:
        yield Unread(f"{pool.key}.transfer", f"a {pool.role} engine", "leave it out: it moves nothing")


def session_faults(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Options that the core has not, or not so, and a secret, which everybody on the host could read."""
    session, key = loaded.fleet.transfer.session, "transfer.session"
    if not session:
        return
    from pdctl_transfer.errors import TransferError
    from pdctl_transfer.plugins.core import options  # with the whole session, which no other check needs
    from pdctl_transfer.session.options import Options

    known = Options.__struct_fields__
    for name in session:
        where, hint = loaded.where(f"{key}.{name}"), None
        if name == "secret":
            message, code = "a secret in a command line, which everybody on the host can read", "PD0043"
            hint = f"leave it out: `pdctl up` draws one; or set `env: {{{SECRET}: …}}` on both sides"
        elif name not in known:
            near = get_close_matches(name, known, n=1)
            message, code = "unknown key", "PD0003"
            hint = f'did you mean "{near[0]}"?' if near else f"it takes {', '.join(known)}"
        else:
            try:
                options("127.0.0.1", {name: session[name]}, {})
                continue
            except TransferError as fault:
                message, code = str(fault).removeprefix("an option of the core: ").partition(" - at ")[0], "PD0004"
        yield FleetFileError(f"{key}.{name}: {message}", where=where, code=code, hint=hint)


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
