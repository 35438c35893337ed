"""What a bootstrap server keeps of the prefill engine it belongs to: the layout of each pipeline stage."""

from typing import Final

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest, encode_manifest
from pdctl_transfer.plugins.sglang_layout import merge

JSON: Final = "application/json"


class Stages:
    """Answers PUT and GET of `peer.ROUTE` with an HTTP status and a body."""

    def __init__(self) -> None:
        self._parts: dict[int, Manifest] = {}

    def put(self, body: bytes) -> tuple[int, bytes]:
        """Keep what a rank says its stage holds; a restarted rank's word replaces the old one's."""
        try:
            part = decode_manifest(body, "PUT")
        except TransferError as fault:
            return 400, str(fault).encode()
        self._parts[part.stages[0].pp_rank] = part
        return 200, b"OK"

    def get(self) -> tuple[int, bytes]:
        """All stages as one manifest; 503 while some are missing."""
        parts = list(self._parts.values())
        if not parts or len(parts) < parts[0].parallel.pp:
            return 503, f"{len(parts)} stages registered so far".encode()
        return 200, encode_manifest(merge(parts))
