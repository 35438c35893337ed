"""What a rule can say: it held, it did not, or it could not be judged. Unknown is never "held"."""

from typing import Any, Literal

from msgspec import Struct, field

Severity = Literal["error", "warning", "info"]


class Evidence(Struct, frozen=True):
    """One observed value and where it came from: `fleet.yaml:12`, `--page-size`, `live`, a file."""

    source: str
    text: str


class Held(Struct, frozen=True, tag=True):
    """The rule holds; `saw` says what was seen, in a line."""

    rule: str
    subject: str
    saw: str


class Finding(Struct, frozen=True, tag=True):
    """The rule does not hold. The words stand in the catalog under `code`; `params` fill its templates."""

    code: str
    subject: str
    evidence: tuple[Evidence, ...] = ()
    params: dict[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    """None: the catalog's severity."""


class Skipped(Struct, frozen=True, tag=True):
    """The rule could not be judged, and why. Where it was `needed`, the verdict on its subject is unknown."""

    rule: str
    subject: str
    reason: str
    needed: bool = False


Outcome = Held | Finding | Skipped
