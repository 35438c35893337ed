"""What running engines say of themselves beside what the fleet file says of them: PD3122, with both sources."""

from collections.abc import Iterator

from pdctl.check.groups import Group
from pdctl.engines.deadline import Deadline
from pdctl.engines.live import Running
from pdctl.engines.said import ANSWER_S, Mute, Said, Stranger, say
from pdctl.fleet import LoadedFleet
from pdctl.running.identity import Contradiction, contradictions, pool_of
from pdctl.versions import Release, released
from pdctl_transfer.rules import Evidence, Finding
from pdctl_transfer.rules.outcome import Severity
from pdctl_transfer.rules.pair import field_value

_SIZES = {"tp": "attn_tp", "pp": "pp"}
"""What engines say in one number, and the key that states it."""


def words_of(running: Running) -> Said | None:
    """What it says of itself; None where nothing answers as an engine of its family does."""
    if running.url is None:
        return None
    try:
        return say(running, Deadline(ANSWER_S))
    except (Mute, Stranger):
        return None


def contradicted(
    loaded: LoadedFleet, group: Group, running: Running, said: Said, *, by_layout: bool
) -> Iterator[Finding]:
    """Errors where it is another engine than the file means; warnings where it has another version or size.

    by_layout: its layout was read, and differences of sizes are said by that.
    """
    for one in contradictions(running, loaded, said):
        yield _finding(running, one, None)
    stated = group.stated
    if stated is not None and stated.stated and said.version and _other(stated.stated, said.version):
        yield _finding(running, Contradiction("version", said.version, stated.source, stated.stated), "warning")
    if not by_layout:
        for one in _sizes(loaded, group, running, said):
            yield _finding(running, one, "warning")


def running_release(running: Running, version: str | None) -> Release | None:
    """The release that the engine itself states; None where it states none."""
    if not version:
        return None
    return released(running.engine, _plain(version), str(running.url), "the engine itself")


def _finding(running: Running, one: Contradiction, severity: Severity | None) -> Finding:
    evidence = (Evidence(one.source, f"{one.what}: {one.means}"), Evidence(str(running.url), f"{one.what}: {one.says}"))
    params = {"name": running.name, "what": one.what, "says": one.says, "means": one.means}
    return Finding("PD3122", running.name, evidence, params, severity)


def _sizes(loaded: LoadedFleet, group: Group, running: Running, said: Said) -> Iterator[Contradiction]:
    pool = pool_of(loaded, running)
    for name, key in _SIZES.items():
        value = said.sizes.get(name)
        if value is not None and f"{pool.key}.{key}" in loaded and value != getattr(pool, name):
            yield Contradiction(name, str(value), loaded.source(f"{pool.key}.{key}"), str(getattr(pool, name)))
    for name in ("page_size", "kv_cache_dtype") if group.sides else ():
        value, known = said.sizes.get(name), group.side.known(name)
        means = field_value(group.manifest, name)
        if value not in (None, "auto") and known is not None and str(means) != str(value) and means != "auto":
            yield Contradiction(name, str(value), known.source, str(means))


def _other(stated: str, said: str) -> bool:
    return _plain(stated) != _plain(said)


def _plain(version: str) -> str:
    """Without the local part of a build: `0.32.0+cpu`."""
    return version.partition("+")[0]
