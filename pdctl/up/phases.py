"""The phases of a bring-up, as data: `up --plan`, `up --skip-phase`, the help and the progress view read this tuple."""

from collections.abc import Callable
from dataclasses import dataclass

from pdctl.up.context import Bringup
from pdctl.up.engines import other_roles, others, ship_core, start_decode, start_others, start_prefill
from pdctl.up.pairs import probe_pairs
from pdctl.up.preflight import preflight
from pdctl.up.router import first_completion, start_router


@dataclass(frozen=True)
class Phase:
    """One step. It is done when what it `says` is true; `run` returns a note on how it went, or raises."""

    name: str
    says: str
    run: Callable[[Bringup], str]
    applies: Callable[[Bringup], bool] = lambda run: True


def anything_new(run: Bringup) -> bool:
    """Whether an engine was started, or what was there is not known to work."""
    return not run.verified or any(one.unit.name in run.begun for one in run.plan.engines)


PHASES = (
    Phase("preflight", "packages, model, ports and layouts fit", preflight),
    Phase("core", "the transfer core is where every engine looks, one digest", ship_core),
    Phase("prefill", "prefill engines answer", start_prefill),
    Phase("decode", "decode engines answer", start_decode),
    Phase("others", "engines of further roles answer", start_others, lambda run: bool(others(run) or other_roles(run))),
    Phase("pairs", "a real block crossed every pair", probe_pairs, anything_new),
    Phase("router", "the router routes to both sides", start_router),
    Phase("completion", "a first completion came back and is right", first_completion),
)

NAMES = tuple(phase.name for phase in PHASES)
