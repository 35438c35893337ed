"""The verdict on a pair at the handshake: the same rules that `pdctl check` runs, errors only."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.rules import Finding, Outcome, Pair
from pdctl_transfer.rules import judge as outcomes

NOT_ERRORS: Final = frozenset({"PD1014", "PD1015", "PD1023", "PD1029", "PD1037"})
"""Codes whose severity in the catalog is less than error; the catalog itself stays with pdctl."""


def judge(prefill: Manifest, decode: Manifest) -> Refusal | None:
    """None where the pair fits; else the first code, and what was found."""
    return refusal(outcomes(Pair.of(prefill, decode)))


def refusal(found: Iterable[Outcome]) -> Refusal | None:
    """What the errors among these outcomes come to."""
    errors = [outcome for outcome in found if isinstance(outcome, Finding) and refused(outcome)]
    if not errors:
        return None
    first, *others = errors
    also = "".join(f"; {other.code}" for other in others[:8])
    return Refusal(first.code, f"{_words(first)}{also}")


def judge_sizes(prefill: Mapping[str, Any], decode: Manifest) -> Refusal | None:
    """The same for a prefill side without the plugin, of which only SGLang's own bootstrap answer is known."""
    page_size, dtype = prefill.get("page_size"), prefill.get("kv_cache_dtype")
    if page_size is not None and int(page_size) != decode.page_size:
        return Refusal("PD1001", f"page size {page_size} on prefill, {decode.page_size} on decode")
    if dtype is not None and str(dtype) != decode.kv_cache_dtype:
        return Refusal("PD1002", f"KV cache dtype {dtype} on prefill, {decode.kv_cache_dtype} on decode")
    return None


def refused(finding: Finding) -> bool:
    """Whether a finding is an error."""
    return finding.severity == "error" or (finding.severity is None and finding.code not in NOT_ERRORS)


def _words(finding: Finding) -> str:
    """The finding's own sentence where it has one, else both sides' values."""
    what = finding.params.get("what")
    return str(what) if what else ", ".join(f"{item.text} on {item.source}" for item in finding.evidence[:4])
