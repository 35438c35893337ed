"""PD1019: the page size must be a multiple of the compression ratio of sparse attention.

Compressed keys are addressed by page, `page_size / ratio` of them. The ratio stands in the manifest as the rows of the
pending ring.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.outcome import Finding, Held, Outcome
from pdctl_transfer.rules.pair import Pair, components


def check_compression(pair: Pair) -> Iterator[Outcome]:
    """One outcome a side that compresses."""
    for role, side in pair.sides:
        page = side.manifest.page_size
        for ratio in sorted(_ratios(side.manifest)):
            if page % ratio:
                evidence = (side.evidence("page_size"), side.said(f"qsa_pending: {ratio} rows a request"))
                params = {"what": f"{role}: page size {page} is not a multiple of the compression ratio {ratio}"}
                yield Finding("PD1019", side.name, evidence, params)
            else:
                yield Held("compression", side.name, f"page size {page} is {page // ratio} × ratio {ratio}")


def _ratios(manifest: Manifest) -> set[int]:
    pending = (part for part in components(manifest) if part.kind == "qsa_pending")
    return {entry.outer for part in pending for entry in part.entries if entry.outer >= 1}
