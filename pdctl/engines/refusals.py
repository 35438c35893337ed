"""What `up` would refuse of a fleet file, as far as the file alone tells: asked by every command that reads one.

Errors come all at once, in the file's order. Where a flag may be right for another version of the engine than the one
that pdctl has a table of, it is a finding (PD0031) instead: unknown is never ok, but newer engines have newer flags.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import TYPE_CHECKING

from msgspec import structs

from pdctl.engines import adapter
from pdctl.engines.core import session_faults
from pdctl.engines.settled import Contradiction, contradictions
from pdctl.engines.spans import span_faults
from pdctl.engines.versions import installed_version
from pdctl.errors import FleetFileError
from pdctl.flags import Reading, Table, load, read_words, values_of_switches, verdicts
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool
from pdctl.hosts.exec import LOCAL_NAMES
from pdctl.routers import KEY_FLAGS, ROUTERS, RouterKind
from pdctl.versions import image_version
from pdctl_transfer.rules.outcome import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pdctl.engines.base import Engine


def refuse(loaded: LoadedFleet) -> tuple[Finding, ...]:
    """Findings about flags that only another version may have. Raises FleetFileError for what no engine would take, for
    two truths, and for what a router that pdctl starts is told by it."""
    twice = [one.error for pool in loaded.pools() for one in two_truths(loaded, pool)]
    return _read(loaded, [*twice, *set_by_pdctl(loaded)])


def judge(loaded: LoadedFleet) -> tuple[Finding, ...]:
    """`refuse` for who starts nothing: two truths are findings, and a router's own args may list its engines."""
    twice = [one.finding for pool in loaded.pools() for one in two_truths(loaded, pool)]
    told = list(_told(loaded))
    flags = {"flag": " and ".join(dict.fromkeys(flag for flag, _ in told))}
    places = tuple(Evidence(fault.where or "", flag) for flag, fault in told)
    mine = [Finding("PD0015", "router", places, flags, "warning")] if told else []
    return (*_read(loaded, []), *twice, *mine)


def _read(loaded: LoadedFleet, faults: list[FleetFileError]) -> tuple[Finding, ...]:
    """Every word of the file by the table of its program. Raises these faults and what it finds."""
    doubts: list[Finding] = []
    for pool in loaded.pools():
        engine = adapter(pool.engine or loaded.fleet.engine)
        faults += pool_faults(loaded, pool, engine)
        table, reading = load(engine.name), read_words(load(engine.name), pool.args)
        here, found = _words(loaded, pool.key, pool.name, table, reading, _version(loaded, pool, engine, table))
        faults += here
        doubts += found
    here, found = _router_words(loaded)
    raise_all([*faults, *router_faults(loaded), *here])
    return (*doubts, *found)


def raise_all(faults: list[FleetFileError]) -> None:
    """Raise the first in the file's order, the others behind it."""
    if faults:
        first, *others = sorted(faults, key=lambda fault: int((fault.where or "").rpartition(":")[2] or 0))
        first.others = tuple(others)
        raise first


def pool_faults(loaded: LoadedFleet, pool: Pool, engine: "Engine") -> Iterator[FleetFileError]:
    """What the engine cannot be told: ports that it does not have, fields that it does not read."""
    yield from _secrets(loaded, pool, engine)
    if pool is loaded.fleet.prefill[0]:
        yield from session_faults(loaded)
    yield from span_faults(loaded, pool)
    purposes = tuple(engine.purposes(pool))
    for purpose in pool.ports:
        if purpose not in purposes:
            key = f"{pool.key}.ports.{purpose}"
            message = f"{key}: a {pool.role} engine of {engine.name} has no port for {purpose}"
            near = get_close_matches(purpose, purposes, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"it takes {', '.join(purposes)}"
            yield FleetFileError(message, where=loaded.where(key), code="PD0003", hint=hint)
    for key, reader, hint in engine.unread(loaded.fleet, pool):
        message = f"{key}: {reader} does not read it"
        yield FleetFileError(message, where=loaded.where(key), code="PD0035", hint=hint)


def two_truths(loaded: LoadedFleet, pool: Pool) -> Iterator[Contradiction]:
    """Flags of the pool beside fields that say something else."""
    engine = adapter(pool.engine or loaded.fleet.engine)
    reading = read_words(load(engine.name), pool.args)
    yield from contradictions(loaded, pool, reading, engine.settled(loaded.fleet, pool))


def _secrets(loaded: LoadedFleet, pool: Pool, engine: "Engine") -> Iterator[FleetFileError]:
    """PD0043: `--session secret=…`, which everybody on the host can read."""
    for index, word in enumerate(pool.args):
        if word.startswith("secret=") or (word.startswith("--s") and "=secret=" in word):
            message = "a secret in a command line, which everybody on the host can read"
            hint = "leave it out"
            if engine.secret_variable:
                hint += f": `pdctl up` draws one; or set `env: {{{engine.secret_variable}: …}}` for both sides"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.args.{index}"), code="PD0043", hint=hint)


def launcher_faults(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """What the launcher cannot start. Only who starts something asks: a check reads of an image which release runs."""
    for pool in loaded.pools():
        if pool.image is not None:
            message = f"{pool.key}.image: the local launcher does not read it"
            hint = "`environment` names the environment that it starts"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.image"), code="PD0035", hint=hint)
        if not pool.shares_ports:
            key = f"{pool.key}.network" if pool.network else "network"
            message = f"{key}: the local launcher does not read it"
            hint = "leave it out: what it starts shares this host's ports"
            yield FleetFileError(message, where=loaded.where(key), code="PD0035", hint=hint)


def startable(loaded: LoadedFleet) -> RouterKind:
    """The fleet's router. Raises FleetFileError (PD3118) for one that pdctl does not start."""
    kind = loaded.fleet.router.kind
    if kind not in ROUTERS:
        *some, last = ROUTERS
        near = get_close_matches(kind, ROUTERS, n=1)
        hint = f"it starts {', '.join(some)} and {last}; `pdctl check` judges a fleet behind any router"
        message = f"router.kind: pdctl does not start {kind}"
        where = loaded.where("router.kind")
        raise FleetFileError(message, where=where, code="PD3118", hint=f"did you mean {near[0]}?" if near else hint)
    return ROUTERS[kind]


def set_by_pdctl(loaded: LoadedFleet) -> list[FleetFileError]:
    """PD0015: flags that pdctl sets itself on a router that it starts."""
    return [fault for _, fault in _told(loaded)]


def _told(loaded: LoadedFleet) -> Iterator[tuple[str, FleetFileError]]:
    """Those flags as they are spelled, each with its fault."""
    router = loaded.fleet.router
    kind = None if loaded.fleet.external else ROUTERS.get(router.kind)
    for one in read_words(load(router.kind), router.args).given if kind else ():
        if kind and one.called("--prefill", "--decode", "--host", "--port", kind.pd):
            where = loaded.where(f"router.args.{one.index}")
            hint = "`router.host` and `router.port` say where it listens; the rest follows from the pools"
            yield one.spelled, FleetFileError(f"{one.spelled} is set by pdctl", where=where, code="PD0015", hint=hint)


def router_faults(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """PD0015: keys that everybody would see. PD0010: a switch that is given a value, in any version."""
    router = loaded.fleet.router
    if router.kind not in ROUTERS:
        return
    reading = read_words(load(router.kind), router.args)
    for one in reading.given:
        for flag in KEY_FLAGS:
            if one.called(flag):
                where = loaded.where(f"router.args.{one.index}")
                message = f"{one.spelled} would show a key to everybody on the host"
                yield FleetFileError(message, where=where, code="PD0015", hint=KEY_FLAGS[flag])
    for flag, value, index in values_of_switches(reading, router.args):
        where = loaded.where(f"router.args.{index}")
        message = f"{flag} takes no value, found {value!r}"
        yield FleetFileError(message, where=where, code="PD0010", hint=f"write {flag} alone")


def _router_words(loaded: LoadedFleet) -> tuple[list[FleetFileError], list[Finding]]:
    """The router's own flags, as its table has them; what `router_faults` says is not said twice."""
    router = loaded.fleet.router
    if router.kind not in ROUTERS:
        return [], []
    table = load(router.kind)
    reading = read_words(table, router.args)
    said = {index for _, _, index in values_of_switches(reading, router.args)}
    said |= {index + 1 for index in said}
    reading = structs.replace(reading, faults=tuple(fault for fault in reading.faults if fault.index not in said))
    version = None if loaded.fleet.external else installed_version(router.kind, ROUTERS[router.kind].launch[0])
    return _words(loaded, "router", "router", table, reading, version)


def _version(loaded: LoadedFleet, pool: Pool, engine: "Engine", table: Table) -> str | None:
    """The version that will run: as the file states it, or an image's tag, or the environment, where that lies here."""
    if engine.name == "reference":
        return table.version
    fleet = loaded.fleet
    stated = pool.engine_version or (fleet.engine_version if engine.name == fleet.engine else None)
    if stated or pool.image is not None:
        return stated or image_version(engine.name, pool.image or "")
    if pool.environment is None and (fleet.external or not set(pool.hosts) <= set(LOCAL_NAMES)):
        return None
    return installed_version(engine.name, engine.python(pool))


def _words(
    loaded: LoadedFleet, key: str, subject: str, table: Table, reading: Reading, version: str | None
) -> tuple[list[FleetFileError], list[Finding]]:
    faults, doubts = [], []
    for verdict in verdicts(table, reading, version):
        where = loaded.where(f"{key}.args.{verdict.index}")
        if verdict.refused:
            faults.append(FleetFileError(verdict.message, where=where, code=verdict.code, hint=verdict.hint))
        else:
            params = {"what": verdict.message, "version": verdict.hint or ""}
            severity: Severity | None = "info" if verdict.known else None
            doubts.append(Finding("PD0031", subject, (Evidence(where, verdict.flag),), params, severity))
    return faults, doubts
