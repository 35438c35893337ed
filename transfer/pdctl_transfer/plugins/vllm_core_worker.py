"""The connector's half in each of vLLM's workers: a peer of the transfer core over the worker's own caches.

A worker says that a request is over only once its blocks may be used again. vLLM keeps them until all workers have said
so, also of a request that failed or was aborted: it keeps the core's quarantine, and has no timeout that ends it.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Transfer
from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.versions import backend_version
from pdctl_transfer.plugins.vllm_core_ids import Kind
from pdctl_transfer.plugins.vllm_core_layout import Held, check, held, storages
from pdctl_transfer.plugins.vllm_core_scheduler import Address, Load, Orders, Send
from pdctl_transfer.plugins.vllm_core_settings import Settings
from pdctl_transfer.plugins.vllm_core_stats import Counts
from pdctl_transfer.plugins.vllm_state import Way, state
from pdctl_transfer.region import CPU
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.life import Handle

log = logging.getLogger("vllm.pdctl")


DECODE: Final = "decode"
"""A producer's peers are all that ask: it is not told which engine of them a request goes to."""
TAKEN: Final = Way(DECODE, "engine", "PD3150", "decode took it by the engine's own way")


class Ended(NamedTuple):
    """Requests whose blocks are free again since the last step; of the received ones those that failed."""

    sent: set[str]
    received: set[str]
    failed: set[str]


class Holding(Struct):
    """Blocks of a request on prefill. engine: its own connector holds them out as well, and has not let go."""

    handle: Handle
    engine: bool


class CoreWorker:
    """What `PdctlConnector` does in a worker.

    worker: the engine as the plugin's export wants it. drop: let the engine's own connector forget a request that it
    holds out.
    """

    def __init__(
        self, settings: Settings, kinds: Sequence[Kind], rank: Rank, worker: Any, drop: Callable[[str], object]
    ) -> None:
        self._settings, self._kinds, self._rank, self._worker = settings, tuple(kinds), rank, worker
        self._drop = drop
        self._options = settings.options()
        self._make: Any = None
        self._peer: Any = None
        self._fabric: Fabric | None = None
        self._holds: dict[str, Holding] = {}
        self._loads: dict[str, Handle] = {}
        self._unsent: set[str] = set()
        self._unasked: set[str] = set()
        """Requests of which not even a room could be opened, or asked for."""
        self._declined: list[Handle] = []
        self.counts = Counts()

    def register(self, caches: Mapping[str, Any], groups: Sequence[Any], num_blocks: int) -> None:
        """Take the engine's caches, one tensor a layer. Raises TransferError where the core cannot move them, or a
        fabric does not start."""
        settings = self._settings
        plugin.export(self._worker)
        side = plugin.side_of(self._worker, settings.fabric)
        if state.manifest is None:
            raise TransferError("the layout of its caches could not be read", code="PD3147")
        version = backend_version(settings.fabric)
        transfer = Transfer(settings.fabric, version)
        mine = held(state.manifest, side, self._kinds, groups, caches, num_blocks, transfer)
        fabric = self._fabric = _fabric(settings, self._options.host)
        for base, nbytes in storages(mine.tensors):
            fabric.register(base, nbytes)
        copier = torch_copier(mine) if any(region.where != CPU for region in mine.regions) else None
        if side.role == "prefill":
            self._make = lambda registry: PrefillPeer(
                mine.manifest,
                self._rank,
                mine.regions,
                fabric,
                registry=registry,
                options=self._options,
                check=check,
                copier=copier,
            )
        else:
            self._adopt(
                DecodePeer(mine.manifest, self._rank, mine.regions, fabric, self._options, check=check, copier=copier)
            )

    @guarded(None)
    def follow(self, orders: Orders) -> None:
        """Begin what the scheduler wants in this step. Blocks to send are computed by now, blocks to load are free."""
        if self._peer is None and self._make is not None and orders.registry is not None:
            self._adopt(self._make(orders.registry))
        for request, send in orders.send.items():
            self._send(request, send)
        for request, load in orders.load.items():
            self._load(request, load)
        for request, reason in orders.abort.items():
            if request in self._loads:
                self._loads[request].abort(reason)
        for room, registry, reason in orders.decline:
            self._decline(room, registry, reason)

    def ended(self, taken: Collection[str] = (), lapsed: Collection[str] = ()) -> Ended:
        """What has ended since it was asked last. taken: what the engine's own connector says was read from here;
        lapsed: of that, what nobody read in time. Of a request that both hold out only the last word counts."""
        found = Ended(set(self._unsent), set(self._unasked), set(self._unasked))
        for request in self._unsent | self._unasked:
            log.error("pdctl: PD4042: request %s: its transfer could not be begun", request)
        self._unsent.clear()
        self._unasked.clear()
        for request in taken:
            holding = self._holds.get(request)
            if holding is None:
                found.sent.add(request)
                continue
            holding.engine = False
            if request not in lapsed:
                state.went(TAKEN)
                holding.handle.withdraw(TAKEN.reason)
        for request, holding in list(self._holds.items()):
            if holding.handle.reusable and self._let_go(request, holding):
                del self._holds[request]
                self._over(request, holding.handle)
                if holding.handle.state == "confirmed":
                    state.went(Way(DECODE, "core"))
                found.sent.add(request)
        for request, handle in list(self._loads.items()):
            if handle.reusable:
                del self._loads[request]
                self._over(request, handle)
                found.received.add(request)
                if handle.state != "confirmed":
                    found.failed.add(request)
        self._declined = [handle for handle in self._declined if not handle.reusable]
        return found

    def close(self) -> None:
        """Fail what is open. Memory that others may still write to stays registered with the fabric."""
        left = self._peer.close() if self._peer is not None else True
        if left and self._fabric is not None:
            self._fabric.close()

    def _adopt(self, peer: Any) -> None:
        self._peer = peer
        state.telemetry = peer.telemetry

    def _let_go(self, request: str, holding: Holding) -> bool:
        """Whether the engine's own connector holds the blocks no more. A room that decode never asked for may still be
        read by the engine's way, until its own lease ends."""
        asked = "waiting" in holding.handle.life.reached or holding.handle.state == "withdrawn"
        if holding.engine and asked:
            self._drop(request)
            holding.engine = False
        return not holding.engine

    def _over(self, request: str, handle: Handle) -> None:
        self.counts.over(handle)
        if handle.state == "failed" and handle.failure is not None:
            code, cause, side = handle.failure.code, handle.failure.cause, handle.failure.side
            log.error("pdctl: %s (%s): request %s: %s", code, side, request, cause)

    @guarded(None)
    def _send(self, request: str, send: Send) -> None:
        if not send.engine:  # else the engine's own connector says when its blocks are free
            self._unsent.add(request)
        try:
            handle = self._peer.open(send.room)
        except Exception as defect:  # decode would wait for a room that never opens
            self._peer.refuse(send.room, "PD4042", f"{type(defect).__name__}: {defect}")
            raise
        self._holds[request] = Holding(handle, send.engine)
        self._unsent.discard(request)
        begun = False
        try:
            handle.send(send.ids)
            begun = True
        finally:
            if not begun:
                handle.abort("its blocks could not be sent")

    @guarded(None)
    def _load(self, request: str, load: Load) -> None:
        self._unasked.add(request)
        try:
            self._loads[request] = self._peer.open(load.room, load.registry, load.ids, skip=load.skip)
        except Exception as defect:  # prefill would keep its blocks for ids that never come
            self._peer.refuse(load.room, load.registry, "PD4042", f"{type(defect).__name__}: {defect}")
            raise
        self._unasked.discard(request)

    @guarded(None)
    def _decline(self, room: int, registry: Address, reason: str) -> None:
        self._declined.append(self._peer.decline(room, registry, reason))


def torch_copier(mine: Held) -> Copier:
    """Torch over the engine's own tensors: of each region the bytes from its first item's to its last one's."""
    import torch

    from pdctl_transfer.session.bytes.torch_copier import TorchCopier

    views = []
    with torch.inference_mode(False):
        for region, tensor in zip(mine.regions, mine.tensors, strict=True):
            storage = tensor.untyped_storage()
            empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            views.append(empty.set_(storage, region.base - storage.data_ptr(), (region.nbytes,), (1,)))
    return TorchCopier(mine.regions, views)


def _fabric(settings: Settings, host: str) -> Fabric:
    if settings.fabric == "nixl":
        from pdctl_transfer.fabric.nixl import NixlFabric

        return NixlFabric(settings.protocol)
    from pdctl_transfer.fabric.mooncake import MooncakeFabric

    return MooncakeFabric(host, settings.protocol, settings.device)
