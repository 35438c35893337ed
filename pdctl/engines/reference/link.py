"""One side of a pair: every rank of this engine as a peer of its own, and a request's transfer over all of them."""

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pdctl.engines.reference.allocator import Place, prefix
from pdctl.engines.reference.engine import Engine, Group
from pdctl.engines.reference.options import SECRET, EngineOptions
from pdctl.engines.reference.pools import KINDS, Pools
from pdctl.engines.reference.request import Bootstrap, Request, digest
from pdctl.errors import InputError
from pdctl_transfer.errors import SessionError
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, ReceiveHandle, Region, Registry, SendHandle
from pdctl_transfer.telemetry import Telemetry

Indices = Mapping[str, Sequence[int]]


class FirstToken(Struct, frozen=True):
    """What travels beside the state: enough for decode to go on as if it had computed the prompt itself."""

    prompt: str
    token: int
    logprob: float
    proposal: int | None


class RankTransfer:
    """What the transfers of both sides share: one handle a rank, and the request ends as they all do."""

    def __init__(self, handles: Sequence[SendHandle | ReceiveHandle], wake: Callable[[], None]) -> None:
        self._handles = handles
        for handle in handles:
            handle.when_over(wake)

    def settled(self) -> bool:
        """Whether every rank is confirmed; SessionError with the first failure's code once one has failed."""
        for handle in self._handles:
            if failure := handle.failure:
                raise SessionError(f"{failure.side}: {failure.cause}", code=failure.code, side=failure.side)
        return all(handle.state == "confirmed" for handle in self._handles)

    def abort(self, reason: str) -> None:
        """Give up on all ranks; those that have ended stay as they are."""
        for handle in self._handles:
            handle.abort(reason)

    def reusable(self) -> bool:
        """Whether no rank's buffers can be read or written any more."""
        return all(handle.reusable for handle in self._handles)


class Sending(RankTransfer):
    """A request on the prefill side."""

    def __init__(self, handles: Sequence[tuple[SendHandle, Indices]], wake: Callable[[], None]) -> None:
        super().__init__([handle for handle, _ in handles], wake)
        self._ready = handles

    def send(self, request: Request) -> None:
        """Write the prompt's state, and the first token with it."""
        first = FirstToken(digest(request.prompt), request.output[0], request.logprobs[0], request.proposal)
        metadata = msgspec.json.encode(first)
        for handle, indices in self._ready:
            handle.send(indices, metadata)

    def receive(self, request: Request) -> None:
        """Never on this side."""
        raise RuntimeError("the prefill side does not receive")


class Receiving(RankTransfer):
    """A request on the decode side."""

    def __init__(self, handles: Sequence[ReceiveHandle], eos: int, wake: Callable[[], None]) -> None:
        super().__init__(handles, wake)
        self._first = handles[0]
        self._eos = eos

    def send(self, request: Request) -> None:
        """Never on this side."""
        raise RuntimeError("the decode side does not send")

    def receive(self, request: Request) -> None:
        """Take over the first token; SessionError PD3053 if the state is that of another prompt."""
        first = msgspec.json.decode(self._first.metadata, type=FirstToken)
        if first.prompt != digest(request.prompt):
            raise SessionError(
                f"prefill computed another prompt than the one that decode was given ({first.prompt} arrived)",
                code="PD3053",
                side="prefill",
            )
        request.proposal = first.proposal
        request.add(first.token, first.logprob, self._eos)


class PrefillLink:
    """The prefill side: a registry, and a peer for each rank of each group."""

    def __init__(self, engine: Engine, fabric: Fabric, options: Options, registry: Registry) -> None:
        self._registry = registry
        self.fabric = fabric
        self._page_size = engine.options.page_size
        manifest, address = engine.manifest(), (engine.options.bootstrap_address, registry.port)
        self._peers = [
            [
                (PrefillPeer(manifest, rank, regions(pools, fabric), fabric, registry=address, options=options), pools)
                for rank, pools in ranks(group, dp)
            ]
            for dp, group in enumerate(engine.groups)
        ]

    @property
    def port(self) -> int:
        """Port of the registry."""
        return self._registry.port

    def open(self, request: Request, wake: Callable[[], None]) -> Sending:
        """Expect decode in the request's room, on every rank of its group."""
        bootstrap, place = _placed(request)
        return Sending(
            [
                (peer.open(bootstrap.room), indices(pools, place, len(request.prompt), self._page_size))
                for peer, pools in self._peers[request.group]
            ],
            wake,
        )

    @property
    def telemetries(self) -> list[Telemetry]:
        """Of every rank."""
        return [peer.telemetry for group in self._peers for peer, _ in group]

    def refuse(self, request: Request, reason: str) -> None:
        """Whoever asks for its room is told at once."""
        if request.bootstrap:
            for peer, _ in self._peers[request.group]:
                peer.open(request.bootstrap.room).abort(reason)

    def close(self) -> None:
        """Leave the registry, then end it, then the fabric."""
        for group in self._peers:
            for peer, _ in group:
                peer.close()
        self._registry.close()
        self.fabric.close()


class DecodeLink:
    """The decode side: a peer for each rank of each group."""

    def __init__(self, engine: Engine, fabric: Fabric, options: Options) -> None:
        self.fabric = fabric
        self._page_size = engine.options.page_size
        self._eos = engine.config.eos
        manifest = engine.manifest()
        self._peers = [
            [
                (DecodePeer(manifest, rank, regions(pools, fabric), fabric, options=options), pools)
                for rank, pools in ranks(group, dp)
            ]
            for dp, group in enumerate(engine.groups)
        ]

    def open(self, request: Request, wake: Callable[[], None]) -> Receiving:
        """Ask for the request's state on every rank of its group."""
        bootstrap, place = _placed(request)
        registry = (bootstrap.host, bootstrap.port)
        return Receiving(
            [
                peer.open(bootstrap.room, registry, indices(pools, place, len(request.prompt), self._page_size))
                for peer, pools in self._peers[request.group]
            ],
            self._eos,
            wake,
        )

    @property
    def telemetries(self) -> list[Telemetry]:
        """Of every rank."""
        return [peer.telemetry for group in self._peers for peer, _ in group]

    def refuse(self, request: Request, reason: str) -> None:
        """Nothing to tell: prefill has not been asked, and gives the room up by its own deadline."""

    def close(self) -> None:
        """End the peers, then the fabric."""
        for group in self._peers:
            for peer, _ in group:
                peer.close()
        self.fabric.close()


def make_fabric(options: EngineOptions) -> Fabric:
    """The fabric that was asked for; FabricError PD4010 if it cannot start."""
    if options.backend == "nixl":
        from pdctl_transfer.fabric.nixl import NixlFabric

        return NixlFabric("rdma" if options.protocol == "rdma" else "tcp")
    if options.backend == "memory":
        from pdctl_transfer.fabric.memory import MemoryFabric

        return MemoryFabric()
    from pdctl_transfer.fabric.mooncake import MooncakeFabric

    return MooncakeFabric(options.host, "rdma" if options.protocol == "rdma" else "tcp", options.devices)


def session_options(options: EngineOptions) -> Options:
    """The session's options: listening where HTTP does, with what `--session` sets. InputError PD3044.

    The secret comes from the environment, where no other user can read it, and from nowhere else (PD0043).
    """
    given = dict(pair.partition("=")[::2] for pair in options.session)
    known = Options.__struct_fields__
    if "secret" in given:
        message = "a secret in a command line, which everybody on the host can read"
        raise InputError(message, where="--session secret", code="PD0043", hint=f"give it in the variable {SECRET}")
    secret = os.environ.get(SECRET)
    if secret == "":
        raise InputError("an empty secret is none", where=SECRET, code="PD3044", hint="leave it out, or give one")
    for name in given:
        if name not in known:
            raise InputError(
                f"no session option {name!r}", where="--session", code="PD3044", hint=f"one of {', '.join(known)}"
            )
    try:
        made = msgspec.convert({"host": options.host} | given, Options, strict=False)
    except msgspec.ValidationError as error:
        raise InputError(str(error), where="--session", code="PD3044") from None
    return replace(made, secret=os.fsencode(secret) if secret is not None else None)


def make_link(engine: Engine, fabric: Fabric, options: Options) -> PrefillLink | DecodeLink:
    """The side that the engine's role says."""
    if engine.options.role == "decode":
        return DecodeLink(engine, fabric, options)
    registry = Registry(engine.options.bootstrap_address, engine.options.bootstrap_port, options.secret)
    return PrefillLink(engine, fabric, options, registry)


def ranks(group: Group, dp: int) -> list[tuple[Rank, Pools]]:
    """The ranks of all stages of a group."""
    return [
        (Rank(stage, tp, dp), pools) for stage, members in enumerate(group.pools) for tp, pools in enumerate(members)
    ]


def regions(pools: Pools, fabric: Fabric) -> list[Region]:
    """A rank's buffers in manifest order, made known to the fabric."""
    found = []
    for buffer in pools.buffers:
        tensor = pools[buffer.key]
        fabric.register(tensor.data_ptr(), tensor.nbytes)
        found.append(Region(tensor.data_ptr(), len(tensor), tensor.nbytes // len(tensor)))
    return found


def indices(pools: Pools, place: Place, prompt: int, page_size: int) -> Indices:
    """The items of a prompt's state, one list for each kind that the rank has."""
    items = {
        "page": prefix(place.pages, prompt, page_size),
        "slot": [place.slot],
        "row": [place.row],
    }
    return {kind: items[space] for kind, space in KINDS.items() if pools.has(kind)}


def _placed(request: Request) -> tuple[Bootstrap, Place]:
    if request.bootstrap is None or request.place is None:
        raise RuntimeError(f"request {request.rid} has no room or no place")
    return request.bootstrap, request.place
