"""The connector's half in vLLM's scheduler: which requests go by the transfer core, and by which blocks.

Prefill pushes. A prompt that was computed keeps its blocks, a room is opened for it, and what decode needs to find the
room travels in `kv_transfer_params`. Decode asks for the room once it has blocks of its own. So nothing is read of
blocks that somebody else has by now: a decode that comes too late finds a room that has failed.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.vllm_core_ids import Kind, chosen
from pdctl_transfer.plugins.vllm_state import Way

log = logging.getLogger("vllm.pdctl")

ROOM: Final = "pdctl_room"
"""In kv_transfer_params, as text: a number of 62 bits does not survive every router's JSON."""
HOST: Final = "pdctl_host"
PORT: Final = "pdctl_port"
"""Where prefill's registry is."""
TOKENS: Final = "pdctl_tokens"
"""How many tokens of the prompt prefill has computed."""
_CUT: Final = "_p_side_truncated"
"""As NIXL's connector marks a request whose prompt was cut, so that neither cuts it again."""
_WHOLE: Final = frozenset({"FINISHED_LENGTH_CAPPED", "FINISHED_STOPPED"})
Address = tuple[str, int]
Ids = Mapping[str, Sequence[int]]


class Send(Struct, frozen=True):
    """A room to open, and what to send to it. engine: the engine's own connector holds the blocks out as well."""

    room: int
    ids: Ids
    engine: bool = False


class Load(Struct, frozen=True):
    """A room to ask for, and where its state goes. skip: of each kind, how many items are here already."""

    room: int
    registry: Address
    ids: Ids
    skip: Mapping[str, int]


class Orders(Struct):
    """From the scheduler to the workers, once a step. Requests by vLLM's ids."""

    registry: Address | None = None
    """Where this engine's own registry is; prefill's workers register there."""
    send: dict[str, Send] = field(default_factory=dict)
    load: dict[str, Load] = field(default_factory=dict)
    decline: list[tuple[int, Address, str]] = field(default_factory=list)
    abort: dict[str, str] = field(default_factory=dict)
    ways: list[Way] = field(default_factory=list)
    """How requests of this step go, for whoever asks a worker."""
    engine: Any = None
    """The orders of the engine's own connector."""


def room_of(params: Any) -> tuple[int, Address, int] | None:
    """Room, registry and tokens of what prefill handed over; None where it hands over no room of the core's."""
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    room, host, port, tokens = (params.get(name) for name in (ROOM, HOST, PORT, TOKENS))
    if not (isinstance(room, str) and isinstance(host, str) and isinstance(port, int) and isinstance(tokens, int)):
        return None
    try:
        return int(room, 16), (host, port), tokens
    except ValueError:
        return None


class CoreScheduler:
    """What `PdctlConnector` does in the scheduler's process.

    backoff: how many tokens at the end of a prompt prefill leaves to decode, one for a recurrent model. registry: where
    prefill's ranks register, None on decode.
    """

    def __init__(self, kinds: Sequence[Kind], select: Any, backoff: int, registry: Address | None) -> None:
        self._kinds, self._select, self._backoff = tuple(kinds), select, backoff
        self.registry = registry
        self._orders = Orders(registry)
        self._sending: set[str] = set()
        self._loading: set[str] = set()

    # ---- prefill ----

    @guarded(None)
    def arrived(self, request: Any) -> None:
        """A prompt whose last tokens decode computes itself ends before them here."""
        params, backoff = request.kv_transfer_params, self._backoff
        if not backoff or not params or not params.get("do_remote_decode") or params.get(_CUT):
            return
        if request.num_prompt_tokens <= backoff or request.get_skip_reading_prefix_cache():
            return
        if request.prompt_token_ids is not None:
            del request.prompt_token_ids[-backoff:]
        elif request.prompt_embeds is not None:
            request.prompt_embeds = request.prompt_embeds[:-backoff]
        else:
            return
        del request._all_token_ids[-backoff:]
        request.num_prompt_tokens -= backoff
        request.max_tokens = 1
        params[_CUT] = True

    @guarded(None)
    def prefilled(self, request: Any, block_ids: Sequence[Sequence[int]], engine: bool) -> dict[str, Any] | None:
        """A request that is to be handed over has ended: what decode is told, or None where nothing is. engine: the
        engine's own connector offers its blocks, too."""
        if request.status.name not in _WHOLE or self.registry is None or not any(block_ids):
            return None
        tokens = min(int(request.num_computed_tokens), int(request.num_prompt_tokens))
        try:
            ids, _ = chosen(self._kinds, self._select(block_ids), tokens)
        except TransferError as fault:
            log.error("pdctl: %s: request %s is not handed over: %s", fault.code, request.request_id, fault.message)
            return None
        room = secrets.randbits(62)
        self._orders.send[request.request_id] = Send(room, ids, engine)
        self._sending.add(request.request_id)
        host, port = self.registry
        return {ROOM: f"{room:x}", HOST: host, PORT: port, TOKENS: tokens}

    @property
    def sending(self) -> bool:
        """Whether blocks are kept for requests that decode has not confirmed yet."""
        return bool(self._sending)

    # ---- decode ----

    @guarded(0)
    def tokens_of(self, request: Any) -> int:
        """How many tokens of a request's prompt come from prefill; 0 where it hands over no room, or all are decode's
        own to compute."""
        found = room_of(request.kv_transfer_params)
        return self._limited(request, found[2]) if found is not None else 0

    @guarded(None)
    def allocated(self, request: Any, blocks: Sequence[Sequence[int]], external: int) -> None:
        """A request has its blocks; `external` of its tokens are to come. 0: its own cache holds them all."""
        found = room_of(request.kv_transfer_params)
        if found is None:
            return
        request.kv_transfer_params["do_remote_prefill"] = False
        room, registry, handed = found
        if external <= 0:
            self._orders.decline.append((room, registry, "decode's own cache holds it"))
            return
        self._loading.add(request.request_id)
        self._orders.ways.append(Way(f"{registry[0]}:{registry[1]}", "core"))
        # Without ids the room fails, and the request with it, in vLLM's own way, should anything break from here on.
        self._orders.load[request.request_id] = Load(room, registry, {}, {})
        tokens = self._limited(request, handed)
        try:
            ids, skip = chosen(self._kinds, self._select(blocks), tokens, tokens - external)
        except TransferError as fault:
            log.error("pdctl: %s: request %s: %s", fault.code, request.request_id, fault.message)
        else:
            self._orders.load[request.request_id] = Load(room, registry, ids, skip)

    @guarded(None)
    def ended(self, request: Any) -> None:
        """A request of decode's has ended: what is under way is given up, what was never asked for is declined."""
        if request.request_id in self._loading:
            self._orders.abort[request.request_id] = f"the request ended as {request.status.name}"
        found = room_of(request.kv_transfer_params)
        if found is not None:
            request.kv_transfer_params["do_remote_prefill"] = False
            room, registry, _ = found
            self._orders.decline.append((room, registry, "the request ended before it was scheduled"))

    def _limited(self, request: Any, tokens: int) -> int:
        return max(0, min(tokens, int(request.num_prompt_tokens) - self._backoff))

    # ---- each step ----

    def orders(self) -> Orders:
        """What the workers are to do in this step."""
        orders, self._orders = self._orders, Orders(self.registry)
        return orders

    def done(self, sent: set[str], received: set[str]) -> None:
        """What all workers have said is over."""
        self._sending -= sent
        self._loading -= received
