"""Rules over a pair of manifests: pure functions, one idea a file, listed and not discovered.

They live in the transfer core because both sides of a handshake run them too, before any byte moves.
"""

from collections.abc import Iterator
from typing import Final

from pdctl_transfer.rules.backends import check_backends
from pdctl_transfer.rules.block_scales import check_block_scales
from pdctl_transfer.rules.carried import check_carried
from pdctl_transfer.rules.compression import check_compression
from pdctl_transfer.rules.compressors import check_compressors
from pdctl_transfer.rules.consistent import check_consistent
from pdctl_transfer.rules.core_limits import check_core_limits
from pdctl_transfer.rules.draft_tp import check_draft_tp
from pdctl_transfer.rules.element_types import check_element_types
from pdctl_transfer.rules.flat_slices import check_flat_slices
from pdctl_transfer.rules.handshake import check_handshake
from pdctl_transfer.rules.idle_layers import check_idle_layers
from pdctl_transfer.rules.index_spaces import check_index_spaces
from pdctl_transfer.rules.item_lengths import check_item_lengths
from pdctl_transfer.rules.kv_dtype import check_kv_dtype
from pdctl_transfer.rules.kv_layout import check_kv_layout
from pdctl_transfer.rules.layer_ids import check_layer_ids
from pdctl_transfer.rules.missing import check_missing
from pdctl_transfer.rules.model import check_depth, check_model, check_values
from pdctl_transfer.rules.moved import check_moved
from pdctl_transfer.rules.ngram import check_ngram
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Severity, Skipped
from pdctl_transfer.rules.page_size import check_page_size
from pdctl_transfer.rules.pair import Pair, Rule, Side
from pdctl_transfer.rules.partners import check_partners
from pdctl_transfer.rules.pipeline import check_pipeline
from pdctl_transfer.rules.positions import check_positions
from pdctl_transfer.rules.refusals import check_refusals
from pdctl_transfer.rules.roles import check_roles
from pdctl_transfer.rules.speculative import check_speculative
from pdctl_transfer.rules.splits import check_splits
from pdctl_transfer.rules.unequal_tp import check_unequal_tp
from pdctl_transfer.rules.versions import check_versions

__all__ = [
    "ENTRY_RULES",
    "RULES",
    "Evidence",
    "Finding",
    "Held",
    "Outcome",
    "Pair",
    "Rule",
    "Severity",
    "Side",
    "Skipped",
    "judge",
    "judge_settings",
]

#: Rules that look at the settings of a side.
SETTING_RULES: Final[tuple[Rule, ...]] = (
    check_roles,
    check_model,
    check_values,
    check_versions,
    check_backends,
    check_handshake,
    check_page_size,
    check_kv_dtype,
    check_block_scales,
    check_element_types,
    check_kv_layout,
    check_pipeline,
    check_refusals,
    check_core_limits,
)

#: Rules that compute with the entries, so only of manifests that agree with themselves.
ENTRY_RULES: Final[tuple[Rule, ...]] = (
    check_depth,
    check_splits,
    check_compression,
    check_unequal_tp,
    check_carried,
    check_moved,
    check_draft_tp,
    check_flat_slices,
    check_layer_ids,
    check_positions,
    check_idle_layers,
    check_missing,
    check_ngram,
    check_partners,
    check_index_spaces,
    check_item_lengths,
    check_compressors,
    check_speculative,
)

RULES: Final[tuple[Rule, ...]] = (check_consistent, *SETTING_RULES, *ENTRY_RULES)


#: What these compare follows from the model where it was not told: they say nothing while a layout is not known.
_OF_LAYOUTS: Final[tuple[Rule, ...]] = (check_page_size, check_kv_dtype, check_kv_layout, check_refusals)
LAYOUTLESS: Final = tuple(rule for rule in SETTING_RULES if rule not in _OF_LAYOUTS)


def judge_settings(pair: Pair) -> Iterator[Outcome]:
    """The rules that need no layout."""
    for rule in LAYOUTLESS:
        yield from rule(pair)


def judge(pair: Pair) -> Iterator[Outcome]:
    """Every rule on one pair. Entry rules are skipped, and say so, where a manifest contradicts itself."""
    contradiction = False
    for outcome in check_consistent(pair):
        contradiction = contradiction or isinstance(outcome, Finding)
        yield outcome
    for rule in SETTING_RULES:
        yield from rule(pair)
    for rule in ENTRY_RULES:
        if contradiction:
            yield pair.skipped(rule.__name__.removeprefix("check_"), "a manifest contradicts itself (PD1021)")
        else:
            yield from rule(pair)
