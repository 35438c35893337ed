"""The engine version of each side, by what states it: a key of the fleet file, an image's tag, an environment."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from pdctl.check.groups import Group
from pdctl.engines.base import python_of
from pdctl.engines.versions import installed_version
from pdctl.fleet import LoadedFleet, Pool
from pdctl.report import JudgedFor
from pdctl.versions import PINNED, SHOWN, Release, image_version, known_range, released
from pdctl_transfer.rules import Evidence, Finding


def of_pool(loaded: LoadedFleet, pool: Pool) -> Release:
    """By `engine_version` of the pool, else of the fleet, else the tag of the image, else the environment's metadata.

    The fleet's version is that of the fleet's engine: a pool with another engine does not take it.
    """
    engine = pool.engine or loaded.fleet.engine
    if pool.engine_version is not None:
        key = f"{pool.key}.engine_version"
        return released(engine, pool.engine_version, loaded.source(key), "engine_version")
    if loaded.fleet.engine_version is not None and engine == loaded.fleet.engine:
        return released(engine, loaded.fleet.engine_version, loaded.source("engine_version"), "engine_version")
    if pool.image is not None:
        source = loaded.source(f"{pool.key}.image")
        return released(engine, image_version(engine, pool.image), source, f"image {pool.image}")
    if pool.environment is not None and (version := installed_version(engine, python_of(pool))):
        return released(engine, version, loaded.source(f"{pool.key}.environment"), f"environment {pool.environment}")
    return released(engine, None)


def unknown(groups: Iterable[Group]) -> Iterator[Finding]:
    """PD1046, once a version: one outside of the range that was read, or an image whose tag tells none."""
    found: dict[tuple[str, str | None, str], list[tuple[str, Release]]] = {}
    for group in groups:
        one = group.release
        if one.engine in PINNED and not one.known and not one.assumed:
            found.setdefault((one.engine, one.stated, one.by), []).append((group.name, one))
    for (engine, stated, by), named in found.items():
        first, last = known_range(engine)
        shown = SHOWN[engine]
        what = f"{by} tells no version of {shown}"
        if stated is not None:
            what = f"{shown} {stated} is outside of the releases that pdctl was read from ({first} to {last})"
        evidence = tuple(dict.fromkeys(Evidence(one.source, one.by) for _, one in named))
        names = ", ".join(name for name, _ in named)
        params = {"what": f"{what}; judged as {PINNED[engine]}"}
        yield Finding("PD1046", names, evidence, params, None if stated else "info")


def notes(releases: Iterable[Release]) -> Iterator[str]:
    """What is taken from the pinned release all the same."""
    for one in releases:
        if one.known and one.engine in PINNED and one.stated != PINNED[one.engine]:
            pinned = f"{SHOWN[one.engine]} {PINNED[one.engine]}"
            yield f"{one.name}: layouts and flags are those of {pinned}; rules that know of a change judge by release"


def judged_for(groups: Iterable[Group]) -> tuple[JudgedFor, ...]:
    """A line an engine release that the report was judged for, with the groups that it holds for."""
    found: dict[Release, list[Group]] = {}
    for group in groups:
        found.setdefault(structs.replace(group.release, source=""), []).append(group)
    return tuple(
        JudgedFor(
            one.engine,
            one.name,
            one.judged,
            one.stated,
            one.by,
            tuple(dict.fromkeys(group.release.source for group in held if group.release.source)),
            tuple(dict.fromkeys(group.name for group in held)),
        )
        for one, held in found.items()
    )
