"""What a row of refusals is, and what it looks at: both sides of a pair, by sizes and kinds of state.

A row is one reason for which an engine's connector refuses: at its start, once weights are loaded, or at each
handshake. It is for the connector that it was read in, never for its neighbours.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from pdctl_transfer.rules.outcome import Severity
from pdctl_transfer.rules.pair import Pair, components, field_value, setting
from pdctl_transfer.rules.unequal_tp import is_mla, kv_heads

BOTH: Final = ("prefill", "decode")
DECODE: Final = ("decode",)


class Sides(Struct, frozen=True):
    """What rows look at. Context-parallel sizes are 1 where not stated; `heads` are all KV heads, 0 for MLA."""

    pair: Pair
    mla: bool
    recurrent: bool
    apart: bool
    """Whether sliding layers have pools of their own, which the hybrid manager keeps."""
    heads: int

    def size(self, role: str, name: str) -> int:
        """`tp` (of the attention), `pp`, `dcp` or `pcp` of a side."""
        manifest = self.pair.prefill if role == "prefill" else self.pair.decode
        if name in ("dcp", "pcp"):
            value: Any = setting(manifest, name)
            return value if isinstance(value, int) and value >= 1 else 1
        return manifest.parallel.pp if name == "pp" else manifest.parallel.attn_tp

    def connector(self, role: str) -> str:
        """The side's way to move pages: `push`, or `pull`, which is NIXL's without another word."""
        manifest = self.pair.prefill if role == "prefill" else self.pair.decode
        return "push" if field_value(manifest, "transfer_mode") == "push" else "pull"

    def consumes(self, role: str) -> bool:
        """Whether the side's connector is a consumer by name; `both` is not, and may be on either side."""
        return role == "decode" and setting(self.pair.decode, "kv_role") != "both"


Judge = Callable[[Sides, str], str | None]


class Refusal(Struct, frozen=True):
    """One reason to refuse. `roles`: the sides that it is asked about, one after the other."""

    engine: str
    backends: frozenset[str]
    """Empty: whatever moves the pages."""
    roles: tuple[str, ...]
    evidence: tuple[str, ...]
    judge: Judge
    source: str
    """The engine, its version, file and line."""
    severity: Severity = "error"
    since: str | None = None
    until: str | None = None
    """The releases that refuse it: from the first on, before the last. None: as far back, or on, as was read."""


def row(
    engine: str,
    backends: frozenset[str],
    roles: tuple[str, ...],
    evidence: tuple[str, ...],
    judge: Judge,
    source: str,
    *,
    severity: Severity = "error",
    since: str | None = None,
    until: str | None = None,
) -> Refusal:
    """A row; no backends means whatever moves the pages."""
    return Refusal(engine, backends, roles, evidence, judge, source, severity, since, until)


def sides_of(pair: Pair) -> Sides:
    """A pair as rows look at it."""
    kinds = {part.kind for part in components(pair.prefill, pair.decode) if part.entries}
    hybrid = any(setting(side.manifest, "hybrid_manager") is not False for _, side in pair.sides)
    return Sides(pair, is_mla(pair), "mamba" in kinds, "swa" in kinds and hybrid, kv_heads(pair.prefill, "kv"))
