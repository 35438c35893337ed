"""Rules over what a fleet's router says to its engines, and what it is told of them: pure, listed, not discovered."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pdctl.check.router_rules.bootstrap import check_bootstrap
from pdctl.check.router_rules.names import check_names
from pdctl.check.router_rules.routed import Routed, routed
from pdctl.check.router_rules.speech import check_speech
from pdctl.check.router_rules.workers import check_workers
from pdctl_transfer.rules import Outcome

__all__ = ["RULES", "judge_router", "routed"]

RULES: Final[tuple[Callable[[Routed], Iterable[Outcome]], ...]] = (
    check_speech,
    check_names,
    check_workers,
    check_bootstrap,
)


def judge_router(fleet: Routed | None) -> Iterator[Outcome]:
    """Every rule on one fleet; nothing on one without a router."""
    if fleet is not None:
        for rule in RULES:
            yield from rule(fleet)
