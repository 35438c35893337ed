"""PD1006: what an engine's connector refuses: at its start, once weights are loaded, or at each handshake.

The rows are data, a file an engine, each with the releases that it is true of; here they are asked. Of a release that
was not read nothing is concluded where a size is in play that rows are about.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules import ascend_refusals, sglang_refusals, vllm_refusals
from pdctl_transfer.rules.outcome import Evidence, Outcome, Severity
from pdctl_transfer.rules.pair import Pair, listed
from pdctl_transfer.rules.refusal import BOTH, Refusal, Sides, sides_of
from pdctl_transfer.rules.releases import applies

REFUSALS: Final[tuple[Refusal, ...]] = (*vllm_refusals.ROWS, *ascend_refusals.ROWS, *sglang_refusals.ROWS)


def check_refusals(pair: Pair) -> Iterator[Outcome]:
    """Every row of the pair's engine and backend, each side that it is about; one finding a side and severity."""
    if len(pair.engines) > 1:
        return
    at = sides_of(pair)
    rows = [row for row in REFUSALS if row.engine in pair.engines and pair.backend in (row.backends or {pair.backend})]
    if pair.outside:
        if asked := _asked(at, rows):
            yield pair.skipped("refusals", f"{listed(asked)}: {pair.outside}", needed=True)
        return
    found: dict[tuple[str, Severity], list[tuple[Refusal, str]]] = {}
    for row in rows:
        for role in row.roles if applies(row.since, row.until, *pair.versions) else ():
            if (what := row.judge(at, role)) is not None:
                found.setdefault((role, row.severity), []).append((row, what))
    for (role, severity), refused in found.items():
        evidence = dict.fromkeys(one for row, _ in refused for one in _evidence(pair, row, role))
        yield pair.finding("PD1006", evidence, severity, what="; ".join(what for _, what in refused))


def _asked(at: Sides, rows: list[Refusal]) -> list[str]:
    """Sizes above 1 that rows are about: `pp`, `dcp`, `pcp`."""
    sizes = dict.fromkeys(name for row in rows for name in row.evidence if name in ("pp", "dcp", "pcp"))
    return [f"{name} {size}" for name in sizes if (size := max(at.size(role, name) for role in BOTH)) > 1]


def _evidence(pair: Pair, row: Refusal, role: str) -> Iterator[Evidence]:
    """The sizes, of both sides where the row is about the pair, and where the engine refuses them."""
    for name in row.evidence:
        for side_role, side in pair.sides:
            if len(row.roles) == 1 or side_role == role:
                yield side.evidence(name)
    yield Evidence(row.source, "where it is refused")
