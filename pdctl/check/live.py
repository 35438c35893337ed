"""`--live`: layouts as the fleet's running engines report them, and where they are not what the fleet file derives.

Addresses come from the view of the running fleet, whoever started it. How an engine is asked is a collector of its own;
one that cannot be read is never a pass. What it says of itself beside its layout is put beside the file as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Final

from msgspec import structs

from pdctl.check.compare import differences
from pdctl.check.groups import Group
from pdctl.check.stated import contradicted, running_release, words_of
from pdctl.engines.live import CollectError, Collector, Running
from pdctl.engines.said import Said
from pdctl.fleet import LoadedFleet
from pdctl.inputs import is_folder
from pdctl.running import members_of
from pdctl_transfer.errors import ManifestError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules import Evidence, Finding, Side, Skipped
from pdctl_transfer.rules.pair import FIELDS

TIMEOUT_S: Final = 5.0
AT_ONCE: Final = 64
"""Questions that are on their way at one time."""


#: Where each engine's collector is: module and function.
COLLECTORS: Final[Mapping[str, tuple[str, str]]] = {
    "reference": ("pdctl.engines.live", "over_http"),
    "sglang": ("pdctl.engines.sglang.live", "collect"),
    "vllm": ("pdctl.engines.vllm.live", "collect"),
    "vllm-ascend": ("pdctl.engines.vllm.live", "collect"),
}


def live_groups(loaded: LoadedFleet, derived: Sequence[Group], model: Path | None = None) -> Iterator[Group]:
    """The derived groups with the layouts that run: a group for each layout that a pool's engines report.

    model: the folder with the model's config, for engines that show no layout and whose own path is none of this host;
    else the fleet file's, where that is a folder here.
    """
    folder = model or (Path(loaded.model_path) if is_folder(Path(loaded.model_path)) else None)
    members = {one.name: structs.replace(one, model=folder) for one in members_of(loaded)}
    wanted = [(group, members[name]) for group in derived for name in group.members]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as workers:
        words = [workers.submit(words_of, running) for _, running in wanted]
        answers = list(workers.map(lambda pair: _ask(pair[1]), wanted))
    for (group, running), answer, asked in zip(wanted, answers, words, strict=True):
        yield _live(loaded, group, running, answer, asked.result())


def _live(loaded: LoadedFleet, group: Group, running: Running, answer: Manifest | str, said: Said | None) -> Group:
    name, place = running.name, _place(running)
    by_layout = not isinstance(answer, str)
    others = tuple(contradicted(loaded, group, running, said, by_layout=by_layout)) if said is not None else ()
    version = said.version if said is not None else None
    if isinstance(answer, str):
        asked = Evidence(place, f"{running.engine} {running.role} engine")
        unread = Finding("PD1025", name, (asked,), {"name": name, "reason": answer})
        blocked = (Skipped("live", name, "could not be read (PD1025)", needed=True),)
        stated = running_release(running, version) or group.stated
        return Group(group.role, name, (name,), blocked=blocked, outcomes=(unread, *others), stated=stated)
    side = Side(answer, name, {field: Evidence(place, "") for field in (*FIELDS, "manifest")})
    return structs.replace(
        group,
        name=name,
        members=(name,),
        sides=(side,),
        blocked=(),
        unknown=None,
        draft=None,
        outcomes=(*_drifted(group, side, place), *others),
        stated=running_release(running, version or answer.engine.version) or group.stated,
    )


def _ask(running: Running) -> Manifest | str:
    """The layout, or why there is none."""
    module, function = COLLECTORS.get(running.engine, ("", ""))
    if running.url is None:
        return "its port is not known: the fleet is not up, and the fleet file fixes none"
    try:
        collect: Collector = getattr(import_module(module), function)
    except (ModuleNotFoundError, ValueError):
        return f"no way to read a running {running.engine} engine"
    if running.unkeyed:
        return running.unkeyed
    try:
        manifest = collect(running, TIMEOUT_S)
    except (CollectError, ManifestError) as error:
        return str(error)
    if manifest.role != running.role:
        return f"it reports the layout of a {manifest.role} engine, the fleet file says {running.role}"
    return manifest


def _place(running: Running) -> str:
    return running.url or running.name


def _drifted(group: Group, live: Side, place: str) -> tuple[Finding, ...]:
    if group.blocked or group.unknown:
        return ()
    found = differences(group.manifest, live.manifest)
    if not found:
        return ()
    evidence = tuple(Evidence(place, text) for text in found[:6])
    return (Finding("PD1026", live.name, evidence, {"name": live.name, "count": len(found), "first": found[0]}),)
