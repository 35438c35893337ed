"""One check from its arguments to its report."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from pdctl.check.groups import Group, merged, told_apart
from pdctl.check.inputs import (
    DASH,
    is_manifest,
    manifest_group,
    read_bytes,
    require_both_roles,
    require_few_pairs,
    shown,
)
from pdctl.check.judging import judgements
from pdctl.check.releases import judged_for
from pdctl.check.releases import notes as release_notes
from pdctl.errors import InputError
from pdctl.report import Report, make_report
from pdctl_transfer.rules import Outcome

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet


class Options(Struct, frozen=True):
    """How to judge. `live`: read what running engines say; otherwise only what files say."""

    backend: str | None = None
    platform: str | None = None
    model: Path | None = None
    draft: Path | None = None
    live: bool = False
    prove: bool = False
    ignore: frozenset[str] = frozenset()


def check(paths: Sequence[Path], options: Options) -> Report:
    """Judge every prefill against every decode side in these files.

    Raises InputError (exit 2) for what cannot be read or has one role only, ManifestError and ConfigError the same.
    """
    start = time.perf_counter()
    if paths.count(DASH) > 1:
        raise InputError("standard input can be read once", where="-", hint="write one of the two to a file")
    inputs = [_read(path, options) for path in paths]
    paths = [shown(path) for path in paths]
    if options.live and not any(one.fleet for one in inputs):
        raise InputError("no fleet file: --live reads the engines that one names", where="--live")
    files = _labels(paths)
    groups = told_apart([(file, group) for file, one in zip(files, inputs, strict=True) for group in one.groups])
    return _report(groups, inputs, options, ", ".join(map(str, paths)), start)


def _labels(paths: Sequence[Path]) -> list[str]:
    """What tells the files apart: their names, else their paths, else their place in the command line."""
    for labels in ([path.name for path in paths], [str(path) for path in paths]):
        if len(set(labels)) == len(labels):
            return labels
    return [f"{path.name}#{place}" for place, path in enumerate(paths, 1)]


def check_fleet(loaded: "LoadedFleet", options: Options | None = None) -> Report:
    """Judge a fleet file that was read already."""
    options = options or Options()
    start = time.perf_counter()
    one = _fleet(loaded, options)
    return _report(one.groups, [one], options, str(loaded.path), start)


class _Input(Struct, frozen=True):
    """What one argument brings: groups, and what its fleet file as a whole says."""

    groups: tuple[Group, ...]
    outcomes: tuple[Outcome, ...] = ()
    notes: tuple[str, ...] = ()
    fleet: bool = False


def _read(path: Path, options: Options) -> _Input:
    data, path = read_bytes(path), shown(path)
    if is_manifest(data):
        given = {"--platform": options.platform, "--model": options.model, "--draft": options.draft}
        unused = [option for option, value in given.items() if value]
        notes = (f"{path.name} is a manifest: {' and '.join(unused)} cannot change it",) if unused else ()
        return _Input((manifest_group(data, path),), notes=notes)
    from pdctl.fleet import parse_fleet

    return _fleet(parse_fleet(data, path), options)


def _fleet(loaded: "LoadedFleet", options: Options) -> _Input:
    from pdctl.check.by_core import by_one_way
    from pdctl.check.drafts import unread
    from pdctl.check.exposed import exposed
    from pdctl.check.flag_rules.device_places import check_device_places
    from pdctl.check.flag_rules.engine_ids import check_engine_ids
    from pdctl.check.flag_rules.nodes import check_nodes
    from pdctl.check.flag_rules.rank_ranges import check_rank_ranges
    from pdctl.check.fleets import Elsewhere
    from pdctl.check.releases import unknown
    from pdctl.check.router_rules import judge_router, routed
    from pdctl.engines.refusals import judge

    doubts = judge(loaded)
    groups, ways = by_one_way(loaded, options.platform, Elsewhere(options.model, options.draft))
    where = loaded.where("transfer.options.engine_id")
    outcomes: tuple[Outcome, ...] = (
        *doubts,
        *check_device_places(loaded),
        *exposed(loaded, incurable="info"),  # of the hosts' networks, which preflight judges
        *check_engine_ids(groups, loaded.fleet.transfer.options, where),
        *judge_router(routed(loaded, groups)),
        *check_rank_ranges(groups, loaded),
        *check_nodes(loaded),
        *ways,
    )
    handed = "--draft" if options.draft else loaded.source("model.draft") if loaded.draft_path else None
    notes = unread(handed, groups) if handed else ()
    if options.live:
        from pdctl.check.live import live_groups

        groups = tuple(live_groups(loaded, groups, options.model))
    return _Input(groups, (*outcomes, *unknown(groups)), notes, fleet=True)


def _report(groups: Sequence[Group], inputs: Sequence[_Input], options: Options, where: str, start: float) -> Report:
    require_both_roles(groups, where)
    require_few_pairs(groups, where)
    together = merged(groups)
    judged = list(judgements(together, options.backend, options.prove))
    notes = [note for group in groups for note in group.notes] + [note for one in inputs for note in one.notes]
    outcomes = [x for one in inputs for x in one.outcomes] + [x for group in together for x in group.outcomes]
    judged_as = judged_for(groups)
    notes += release_notes(dict.fromkeys(group.release for group in groups))
    seconds = time.perf_counter() - start
    return make_report(
        "check", outcomes, judged, ignore=options.ignore, notes=notes, seconds=seconds, judged_for=judged_as
    )
