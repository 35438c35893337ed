"""Rules over a whole fleet file, beyond its pairs of layouts: pure functions of it, listed and not discovered."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pdctl.check.fleet_rules.context_length import check_context_length
from pdctl.check.fleet_rules.engine_ids import check_engine_ids
from pdctl.fleet import LoadedFleet
from pdctl_transfer.rules import Outcome

#: A rule looks at the fleet file and the config of its model.
FleetRule = Callable[[LoadedFleet, Mapping[str, Any]], Iterable[Outcome]]

FLEET_RULES: Final[tuple[FleetRule, ...]] = (check_context_length, check_engine_ids)

EXPOSED: Final = "mooncake opens two ports of its own choice on every address (0.0.0.0) of each engine's host"


def judge_fleet(loaded: LoadedFleet, config: Mapping[str, Any]) -> Iterator[Outcome]:
    """Every rule. `config` is that of the fleet's model."""
    for rule in FLEET_RULES:
        yield from rule(loaded, config)


def notes(loaded: LoadedFleet) -> tuple[str, ...]:
    """What an operator should know of this fleet although nothing is wrong with it."""
    return (EXPOSED,) if loaded.fleet.transfer.backend == "mooncake" else ()
