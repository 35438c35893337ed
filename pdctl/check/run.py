"""One check from its arguments to its report."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pdctl.check.groups import Group, merged, told_apart
from pdctl.check.inputs import is_manifest, manifest_group, read_bytes, require_both_roles
from pdctl.check.judging import judgements
from pdctl.report import Report, make_report

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet


class Options(Struct, frozen=True):
    """How to judge. `live`: read what running engines say; otherwise only what files say."""

    backend: str | None = None
    platform: str | None = None
    model: Path | None = None
    live: bool = False
    prove: bool = False
    ignore: frozenset[str] = frozenset()


def check(paths: Sequence[Path], options: Options) -> Report:
    """Judge every prefill against every decode side in these files.

    Raises InputError (exit 2) for what cannot be read or has one role only, ManifestError and ConfigError the same.
    """
    start = time.perf_counter()
    found: list[tuple[str, Group]] = []
    for path in paths:
        found += [(path.name, group) for group in _groups(path, options)]
    groups = told_apart(found)
    require_both_roles(groups, ", ".join(map(str, paths)))
    return _report(groups, options, start)


def check_fleet(loaded: "LoadedFleet", options: Options | None = None) -> Report:
    """Judge a fleet file that was read already."""
    from pdctl.check.fleets import fleet_groups

    options = options or Options()
    start = time.perf_counter()
    groups = list(fleet_groups(loaded, options.platform, options.model))
    require_both_roles(groups, str(loaded.path))
    return _report(groups, options, start)


def _groups(path: Path, options: Options) -> Iterator[Group]:
    data = read_bytes(path)
    if is_manifest(data):
        yield manifest_group(data, path)
        return
    from pdctl.check.fleets import fleet_groups
    from pdctl.fleet import load_fleet

    loaded = load_fleet(path)
    groups = fleet_groups(loaded, options.platform, options.model)
    if not options.live:
        yield from groups
        return
    from pdctl.check.live import live_groups

    yield from live_groups(loaded, list(groups))


def _report(groups: Sequence[Group], options: Options, start: float) -> Report:
    together = merged(groups)
    judged = list(judgements(together, options.backend, options.prove))
    notes = [note for group in groups for note in group.notes]
    outcomes = [outcome for group in together for outcome in group.outcomes]
    seconds = time.perf_counter() - start
    return make_report("check", outcomes, judged, ignore=options.ignore, notes=notes, seconds=seconds)
