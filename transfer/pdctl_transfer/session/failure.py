"""Words that all of a session uses: sides, states, and why a request failed."""

from typing import Final, Literal

from msgspec import Struct

State = Literal["bootstrapping", "waiting", "transferring", "confirmed", "failed"]
Side = Literal["prefill", "decode"]

ORDER: Final[tuple[State, ...]] = ("bootstrapping", "waiting", "transferring", "confirmed", "failed")
ENDS: Final = frozenset({"confirmed", "failed"})


class Failure(Struct, frozen=True):
    """Why a request failed: a catalog code, the first cause in words, and the side that is to blame."""

    code: str
    cause: str
    side: Side

    def __str__(self) -> str:
        return f"{self.code} ({self.side}) {self.cause}"
