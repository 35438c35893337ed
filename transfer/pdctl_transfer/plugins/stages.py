"""What a bootstrap server keeps of the prefill engine it belongs to: the layout of each pipeline stage.

Its port asks for no key, so a layout is taken only where it can be this engine's: of a prefill side, one stage, a rank
that there is, sizes as the first one said, and from each rank once. Whoever speaks later and says something else is
refused: the ranks speak when the engine starts, and its server starts anew with them.
"""

from typing import Any, Final

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Manifest, Parallel
from pdctl_transfer.layout.read import decode_manifest, encode_manifest
from pdctl_transfer.plugins.sglang_layout import merge

JSON: Final = "application/json"
MAX_BYTES: Final = 1 << 20
"""Of one stage: thirty times the layout of 48 layers."""
MAX_STAGES: Final = 256


class Stages:
    """Answers PUT and GET of `peer.ROUTE` with an HTTP status and a body."""

    def __init__(self) -> None:
        self._parts: dict[int, Manifest] = {}

    def put(self, body: bytes) -> tuple[int, bytes]:
        """Keep what a rank says its stage holds."""
        if len(body) > MAX_BYTES:
            return 413, b"more than 1 MiB for one stage"
        try:
            part = decode_manifest(body, "PUT")
        except TransferError as fault:
            return 400, str(fault).encode()
        if unfit := _unfit(part):
            return 400, unfit.encode()
        rank = part.stages[0].pp_rank
        if any(_sizes(part) != _sizes(other) for other in self._parts.values()):
            return 409, b"other sizes than the first stage's"
        if self._parts.setdefault(rank, part) != part:
            return 409, f"stage {rank} has said something else before".encode()
        return 200, b"OK"

    def parallel(self) -> Parallel | None:
        """The sizes of the engine, once all of its stages are there."""
        parts = list(self._parts.values())
        return parts[0].parallel if parts and len(parts) >= parts[0].parallel.pp else None

    def get(self) -> tuple[int, bytes]:
        """All stages as one manifest; 503 while some are missing."""
        parts = list(self._parts.values())
        if not parts or len(parts) < parts[0].parallel.pp:
            return 503, f"{len(parts)} stages registered so far".encode()
        return 200, encode_manifest(merge(parts))


def _unfit(part: Manifest) -> str | None:
    """Why this can be no rank's word."""
    if part.role != "prefill":
        return f"the layout of a {part.role} engine"
    if len(part.stages) != 1:
        return f"{len(part.stages)} stages; a rank has one"
    rank, pp = part.stages[0].pp_rank, part.parallel.pp
    if not 0 <= rank < pp <= MAX_STAGES:
        return f"stage {rank} of {pp}"
    return None


def _sizes(part: Manifest) -> tuple[Any, ...]:
    return (part.engine, part.model, part.transfer, part.parallel, part.page_size, part.kv_cache_dtype)
