"""What a side says of itself in a handshake, and whether its memory can be what its layout says."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from pdctl_transfer import __version__
from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest, Stage
from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.region import Region
from pdctl_transfer.rules.outcome import Finding
from pdctl_transfer.session.bytes.copier import Copier, copier_of
from pdctl_transfer.session.failure import Side
from pdctl_transfer.session.options import Options, Rank
from pdctl_transfer.session.wire.messages import PROTOCOL, Hello

NO_ITEMS: Final[Mapping[str, str]] = {"dsa_tail": "segments of a row"}
"""Kinds whose lists are no ids, and what they are (SGLang 0.5.23)."""

Check = Callable[[Manifest, Manifest], Iterable[Finding]]


class Identity(Struct, frozen=True):
    """What this side says of itself, and how it judges others."""

    manifest: Manifest
    encoded: bytes
    rank: Rank
    regions: tuple[Region, ...]
    fabric: Fabric
    options: Options
    incarnation: str
    check: Check
    copier: Copier
    pulse: int = 0
    """Port of this process's pulse, 0 where it has none."""

    @property
    def side(self) -> Side:
        """The role of the manifest."""
        return self.manifest.role

    @property
    def other_side(self) -> Side:
        """The role of every peer."""
        return "decode" if self.manifest.role == "prefill" else "prefill"

    def hello(self) -> Hello:
        """The first message of a link."""
        return Hello(
            protocol=PROTOCOL,
            version=__version__,
            rank=self.rank,
            incarnation=self.incarnation,
            manifest=self.encoded,
            fabric=self.fabric.kind,
            address=self.fabric.address(),
            regions=self.regions,
            chunk_bytes=self.options.chunk_bytes,
            pulse=self.pulse,
            copies=self.copier.can_copy,
        )


def stage_of(manifest: Manifest, rank: Rank) -> Stage | None:
    """The stage of the rank's pipeline position."""
    return next((stage for stage in manifest.stages if stage.pp_rank == rank.pp), None)


def unmoved(manifest: Manifest) -> tuple[str, str] | None:
    """Code and reason why state of this layout is not moved as a whole by any of its ranks; None where it is."""
    parallel = manifest.parallel
    if parallel.attn_cp > 1:
        return "PD1006", (
            f"context parallelism of {parallel.attn_cp} on {manifest.role}: each rank holds other tokens, and the "
            "transfer core does not know which"
        )
    kinds = {component.kind for stage in manifest.stages for component in stage.components if component.entries}
    for kind in sorted(kinds & NO_ITEMS.keys()):
        return "PD4036", f"{kind} on {manifest.role}: its numbers are {NO_ITEMS[kind]}, not ids of items"
    return None


def region_fault(manifest: Manifest, rank: Rank, regions: tuple[Region, ...]) -> str:
    """Why these regions cannot be the memory of this rank under this manifest; empty where they can."""
    stage = stage_of(manifest, rank)
    if stage is None or not 0 <= rank.tp < manifest.parallel.attn_tp or not 0 <= rank.dp < manifest.parallel.dp:
        return f"rank {rank} is not in its manifest"
    entries = [(component.kind, entry) for component in stage.components for entry in component.entries]
    if len(regions) != len(entries):
        return f"{len(regions)} regions for {len(entries)} entries of stage {rank.pp}"
    for region, (kind, entry) in zip(regions, entries, strict=True):
        what = f"{kind} layer {entry.layer} {entry.tensor}"
        if region.item_len != entry.item_len:
            return f"{what}: items of {region.item_len} bytes registered, {entry.item_len} in the manifest"
        if region.stride and region.stride < region.item_len:
            return f"{what}: items of {region.item_len} bytes every {region.stride} bytes lie in each other"
        if region.items < 0 or region.base < 0 or region.base + region.items * region.step >= 1 << 63:
            return f"{what}: {region.items} items at {region.base:#x} are no memory"
    return ""


def unsummed(me: Identity, hello: Hello) -> str:
    """Why this pair cannot check what it moves as this side was told to; empty where it can. Decode decides."""
    if me.side == "prefill" or me.options.verify == "none" or hello.copies:
        return ""
    return f"verify is {me.options.verify!r} on decode, and prefill cannot sum up memory that its CPU does not reach"


def identity(
    manifest: Manifest,
    rank: Rank,
    regions: Iterable[Region],
    fabric: Fabric,
    options: Options,
    check: Check,
    copier: Copier | None = None,
) -> Identity:
    """An identity with a fresh incarnation, and the copier given or one for its regions.

    Raises TransferError PD1006 or PD4036 for a layout that the core does not move, PD4022 where the regions do not fit
    the manifest, or the copier is of others, PD4016 where they are out of the CPU's reach, there is no copier, and
    `options.verify` needs one.
    """
    held = tuple(regions)
    apart = unmoved(manifest)
    if apart is not None:
        raise TransferError(apart[1], code=apart[0])
    fault = region_fault(manifest, rank, held)
    if fault:
        raise TransferError(f"{manifest.role} {rank}: {fault}", code="PD4022")
    copier = copier_of(copier, held, options.verify, f"{manifest.role} {rank}")
    encoded = encode_manifest(manifest)
    return Identity(manifest, encoded, rank, held, fabric, options, os.urandom(8).hex(), check, copier)
