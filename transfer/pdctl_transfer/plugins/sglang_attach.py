"""Putting a core into a rank of SGLang: what of its settings the core does not know, its memory, its fabric, its peer.

The core uses the engine's own session of Mooncake and the memory that the engine registered there. Whatever fails here
leaves the engine without the core.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.plugins import core, sglang_registry, sglang_shape
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.sglang_aux import Rows
from pdctl_transfer.plugins.sglang_manager import CoreRank
from pdctl_transfer.plugins.sglang_slices import Pages
from pdctl_transfer.plugins.sglang_ways import Ways, core_check
from pdctl_transfer.region import Region
from pdctl_transfer.rules.core_limits import KINDS
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank
from pdctl_transfer.session.bytes.copier import Copier, default_copier
from pdctl_transfer.session.bytes.tensors import copier_for

log = logging.getLogger("pdctl")

DEVICES: Final = frozenset({"cpu", "cuda"})
POOLS: Final = ("token_to_kv_pool", "draft_token_to_kv_pool", "req_to_token_pool")
"""Of a queue or its scheduler: what holds the tensors of KV, of a draft model's, and of recurrent state."""


def obstacle(manager: Any, queue: Any, role: Role, backend: str) -> Refusal | None:
    """Why this rank has no core: what of its settings the core does not know."""
    lacks = sglang_shape.missing(manager, backend)
    if lacks:
        return Refusal("PD3131", f"the manager has no {', '.join(lacks[:4])}")
    args, scheduler = manager.kv_args, queue.scheduler
    unknown = sorted({_word(kind) for kind in args.state_types} - KINDS)
    if unknown:
        return Refusal("PD3133", f"{', '.join(unknown)}: its indices are not ids of items, or it is new")
    device = _device(scheduler)
    protocol = protocol_of(os.environ)
    for what, there in (
        ("context parallelism (--attn-cp-size)", manager.attn_cp_size > 1),
        ("decode context parallelism (--dcp-size)", manager.dcp_size > 1),
        ("KV cut by pages over ranks (--enable-kv-cache-sharding)", manager.kv_shard_size > 1),
        ("replicas in one engine (--dp-size without --enable-dp-attention)", manager.system_dp_size > 1),
        ("pipeline stages on decode", role == "decode" and manager.pp_size > 1),
        ("allocation once prefill is complete", manager.defer_decode_allocation),
        ("the engine's staging buffer (SGLANG_DISAGG_STAGING_BUFFER)", manager.enable_staging),
        ("HiSparse", getattr(scheduler, "enable_hisparse", False)),
        ("KV received in host memory", getattr(args, "host_kv_data_ptrs", None)),
        ("metadata rows out of the CPU's reach", rows_on(queue) not in ("", "cpu")),
        (f"memory on {device}", device not in DEVICES),
        (f"Mooncake over {protocol}", backend == "mooncake" and protocol not in ("tcp", "rdma")),
    ):
        if there:
            return Refusal("PD3132", what)
    return None


def rows_on(queue: Any) -> str:
    """Where the metadata buffers lie; empty where that cannot be seen."""
    buffers = getattr(queue, "metadata_buffers", None) or getattr(queue.scheduler, "disagg_metadata_buffers", None)
    return str(getattr(getattr(getattr(buffers, "output_ids", None), "device", None), "type", ""))


def protocol_of(environ: Mapping[str, str]) -> str:
    """What Mooncake was asked for by SGLang's rules."""
    return "tcp" if environ.get("MC_FORCE_TCP") == "1" else environ.get("MOONCAKE_PROTOCOL", "rdma")


def regions_of(args: Any) -> list[Region]:
    """The registered buffers in the order of the manifest's entries. Where they lie is the copier's to say."""
    groups = [(args.kv_data_ptrs, args.kv_data_lens, args.kv_item_lens)]
    groups += zip(args.state_data_ptrs, args.state_data_lens, args.state_item_lens, strict=True)
    return [
        Region(base, length // item if item else 0, item)
        for bases, lengths, items in groups
        for base, length, item in zip(bases, lengths, items, strict=True)
    ]


def copier_of(args: Any, queue: Any) -> Copier:
    """What copies in this rank's memory; its `regions` say where that lies.

    On a device that is torch, over the tensors of the engine's own pools. TransferError PD2310 where none of them holds
    a buffer that the engine has registered.
    """
    regions = regions_of(args)
    owners = (queue, queue.scheduler)
    pools = [held for owner in owners for name in POOLS if (held := getattr(owner, name, None)) is not None]
    return copier_for(pools, regions, _device(queue.scheduler)) or default_copier(regions)


def options_of(manager: Any, role: Role, environ: Mapping[str, str] = os.environ) -> Options:
    """What the operator said, over defaults that follow the engine's own timeouts. TransferError with a code."""
    given = environ.get(core.OPTIONS) or "{}"
    core.options(manager.local_ip, given)  # what is no JSON, or no option, has its code there
    named = msgspec.json.decode(given)
    ask = getattr(manager, "bootstrap_timeout" if role == "prefill" else "waiting_timeout", None)
    wait = getattr(manager, "waiting_timeout", None) or ask
    defaults = {"bootstrap_s": ask, "waiting_s": wait}
    return core.options(
        manager.local_ip, {**{k: float(v) for k, v in defaults.items() if v and k not in named}, **named}
    )


def mooncake(manager: Any) -> Fabric:
    """The engine's own session."""
    from pdctl_transfer.fabric.mooncake import MooncakeFabric

    engine, held = manager.engine, manager._registerable_regions()
    tcp = protocol_of(os.environ) == "tcp"
    return MooncakeFabric.adopt(engine.engine, engine.session_id, held, "tcp" if tcp else "rdma")


def attach(manager: Any, queue: Any, manifest: Manifest, ways: Ways, address: str) -> None:
    """Put a core into this rank. Raises what fails: the caller leaves the engine without one.

    manifest: of all stages of this side. address: the engine's own bootstrap server, of a prefill rank.
    """
    args, role = manager.kv_args, manifest.role
    given = options_of(manager, role)
    rank = Rank(manager.pp_rank, manager.attn_tp_rank, manager.attn_dp_rank)
    copier = copier_of(args, queue)
    regions = copier.regions
    registry = sglang_registry.where(address) if role == "prefill" else None

    def make() -> PrefillPeer | DecodePeer:
        fabric = mooncake(manager)
        if registry is None:
            return DecodePeer(manifest, rank, regions, fabric, given, check=core_check, copier=copier)
        return PrefillPeer(
            manifest, rank, regions, fabric, registry=registry, options=given, check=core_check, copier=copier
        )

    rows = Rows(args.aux_data_ptrs, args.aux_data_lens, args.aux_item_lens)
    manager.ways = ways
    kinds = [_word(kind) for kind in args.state_types]
    later_stage = role == "prefill" and rank.pp > 0  # of which SGLang asks nothing: the first stage asks for all
    manager.core = CoreRank(make, kinds, rows, args.page_size, watched=later_stage)
    if role == "prefill":
        manager.core.pages = Pages(copier, manager.engine.register)
    log.warning("pdctl plugin: the core is in this %s rank %s, with %d regions", role, rank, len(regions))


def _device(scheduler: Any) -> str:
    """Without a number: a rank's tensors are where its process's torch is."""
    return str(getattr(getattr(scheduler, "server_args", None), "device", None) or "cpu").partition(":")[0]


def _word(kind: Any) -> str:
    return str(getattr(kind, "value", kind))
