"""PD1053: a draft model whose config is not here, beside a target whose buffers are known.

Two engines of one target, one draft and equal sizes register equal buffers for it, whatever they are. With unequal
sizes its heads may not divide as the target's do: then nothing is held about them, and the verdict is unknown.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from pdctl.check.groups import Group
from pdctl.derive.drafts import draft_named
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules import Outcome, Pair
from pdctl_transfer.rules.outcome import Severity
from pdctl_transfer.rules.pair import field_value, listed
from pdctl_transfer.rules.speculative import speculates

#: What shapes a draft's buffers beside its config: fields of the manifest, and keys of the speculative settings.
FIELDS: Final = ("engine", "engine_version", "attn_tp", "attn_cp", "pp", "page_size", "kv_cache_dtype", "kv_layout")
SETTINGS: Final = (
    *("algorithm", "method", "model", "draft_model_path"),
    *("draft_tensor_parallel_size", "kv_cache_dtype", "attention_backend"),
)


def check_drafts(pair: Pair, prefill: str | None, decode: str | None) -> Iterator[Outcome]:
    """Nothing where both drafts are known; `prefill`, `decode`: why a side's is not."""
    why = "; ".join(dict.fromkeys(one for one in (prefill, decode) if one))
    if not why:
        return
    if not speculates(pair.prefill):
        yield _said(pair, f"{why}; decode alone speculates, so nothing is sent to it", "info")
        return
    apart = _apart(pair.prefill, pair.decode)
    if prefill and decode and not apart:
        yield _said(pair, f"{why}; both sides have one draft and equal sizes, so its buffers are equal", "info")
        return
    differ = f"; {listed(apart)} differ, so its buffers may" if apart else ""
    yield _said(pair, f"{why}{differ}", "warning")
    yield pair.skipped("drafts", f"not known (PD1053): {why}", needed=True)


def unread(where: str, groups: Sequence[Group]) -> tuple[str, ...]:
    """A note about a draft's config that was handed in at `where`, though no side names a draft model."""
    named = any(draft_named(side.manifest.speculative) for group in groups for side in group.sides)
    return () if named else (f"{where}: no side's speculative settings name a draft model, so its config is not read",)


def _apart(prefill: Manifest, decode: Manifest) -> list[str]:
    """What shapes a draft's buffers and differs."""
    fields = [name for name in FIELDS if field_value(prefill, name) != field_value(decode, name)]
    ours, theirs = prefill.speculative or {}, decode.speculative or {}
    return fields + [f"speculative.{key}" for key in SETTINGS if ours.get(key) != theirs.get(key)]


def _said(pair: Pair, what: str, severity: Severity) -> Outcome:
    return pair.finding("PD1053", pair.evidence("speculative"), severity, what=what)
