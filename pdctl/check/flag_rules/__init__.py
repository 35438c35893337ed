"""Rules over what the flags of two groups say beyond their layouts: pure functions, listed and not discovered."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from pdctl.check.flag_rules.ascend_sizes import check_ascend_sizes
from pdctl.check.flag_rules.connectors import check_connectors, check_registered
from pdctl.check.flag_rules.context_length import check_context_length
from pdctl.check.flag_rules.kv_sharding import check_kv_sharding
from pdctl.check.flag_rules.paths import check_paths
from pdctl.check.flag_rules.refused_flags import check_refused_flags
from pdctl.check.flag_rules.same_numbers import check_same_numbers
from pdctl.check.flag_rules.without_effect import check_without_effect
from pdctl.check.groups import Group
from pdctl_transfer.rules import Outcome

FlagRule = Callable[[Group, Group], Iterable[Outcome]]

FLAG_RULES: Final[tuple[FlagRule, ...]] = (
    check_context_length,
    check_kv_sharding,
    check_same_numbers,
    check_connectors,
    check_registered,
    check_refused_flags,
    check_paths,
    check_without_effect,
    check_ascend_sizes,
)


def judge_flags(prefill: Group, decode: Group) -> Iterator[Outcome]:
    """Every rule on one pair of groups."""
    for rule in FLAG_RULES:
        yield from rule(prefill, decode)
