"""PD1006: what an engine's connector refuses: at its start, once weights are loaded, or at each handshake.

The rows are data, a file an engine; here they are asked.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules import sglang_refusals, vllm_refusals
from pdctl_transfer.rules.outcome import Evidence, Outcome, Severity
from pdctl_transfer.rules.pair import Pair
from pdctl_transfer.rules.refusal import Refusal, sides_of

REFUSALS: Final[tuple[Refusal, ...]] = (*vllm_refusals.ROWS, *sglang_refusals.ROWS)


def check_refusals(pair: Pair) -> Iterator[Outcome]:
    """Every row of the pair's engine and backend, each side that it is about; one finding a side and severity."""
    if len(pair.engines) > 1:
        return
    (engine,) = pair.engines
    at = sides_of(pair)
    found: dict[tuple[str, Severity], list[tuple[Refusal, str]]] = {}
    for row in REFUSALS:
        if row.engine == engine and (not row.backends or pair.backend in row.backends):
            for role in row.roles:
                if (what := row.judge(at, role)) is not None:
                    found.setdefault((role, row.severity), []).append((row, what))
    for (role, severity), rows in found.items():
        evidence = dict.fromkeys(one for row, _ in rows for one in _evidence(pair, row, role))
        yield pair.finding("PD1006", evidence, severity, what="; ".join(what for _, what in rows))


def _evidence(pair: Pair, row: Refusal, role: str) -> Iterator[Evidence]:
    """The sizes, of both sides where the row is about the pair, and where the engine refuses them."""
    for name in row.evidence:
        for side_role, side in pair.sides:
            if len(row.roles) == 1 or side_role == role:
                yield side.evidence(name)
    yield Evidence(row.source, "where it is refused")
