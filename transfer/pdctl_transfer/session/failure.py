"""Words that all of a session uses: sides, states, and why a request failed."""

from typing import Final, Literal

from msgspec import Struct

State = Literal["bootstrapping", "waiting", "transferring", "confirmed", "withdrawn", "failed"]
Side = Literal["prefill", "decode"]

ORDER: Final[tuple[State, ...]] = ("bootstrapping", "waiting", "transferring", "confirmed", "withdrawn", "failed")
ENDS: Final = frozenset({"confirmed", "withdrawn", "failed"})
WITHDRAWN: Final = "PD4035"
"""Not needed after all: over without a transfer, and nobody's fault."""


class Failure(Struct, frozen=True):
    """Why a request failed, or was withdrawn: a catalog code, the first cause in words, and the side that is to blame,
    or withdrew it."""

    code: str
    cause: str
    side: Side

    def __str__(self) -> str:
        return f"{self.code} ({self.side}) {self.cause}"
