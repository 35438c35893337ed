"""One rank of SGLang with the core in it: its peer over the engine's memory, and what failed requests hold."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.sglang_aux import Rows
from pdctl_transfer.plugins.sglang_bases import EngineManager
from pdctl_transfer.plugins.sglang_threads import Behind, Watch
from pdctl_transfer.plugins.sglang_ways import Ways
from pdctl_transfer.session import DecodePeer, PrefillPeer, ReceiveHandle, SendHandle
from pdctl_transfer.telemetry import Telemetry

log = logging.getLogger("pdctl")


class Held:
    """Requests whose pages may still be written, by room: a number may be used again while an older request is held."""

    def __init__(self) -> None:
        self._rooms: dict[int, list[ReceiveHandle]] = {}

    def hold(self, room: int, handle: ReceiveHandle) -> None:
        """From when prefill is told of its pages."""
        self._rooms.setdefault(room, []).append(handle)

    def knows(self, room: int) -> bool:
        """Whether a request of this room went the core's way and was not let go."""
        return room in self._rooms

    def free(self, room: int) -> bool:
        """Whether nothing can be written to this room's pages any more."""
        return all(handle.reusable for handle in self._rooms.get(room, ()))

    def drop(self, room: int, handle: ReceiveHandle) -> None:
        """This one is not asked about any more."""
        rest = [other for other in self._rooms.pop(room, ()) if other is not handle]
        if rest:
            self._rooms[room] = rest

    def let_go(self, room: int) -> None:
        """The engine takes the pages back, or uses them."""
        rest = [handle for handle in self._rooms.pop(room, ()) if not handle.reusable]
        if rest:
            self._rooms[room] = rest


class CoreRank:
    """The core's side of one rank: a peer over the engine's memory, made again when that memory was given back."""

    def __init__(
        self,
        make: Callable[[], PrefillPeer | DecodePeer],
        kinds: Sequence[str],
        rows: Rows,
        page_size: int,
        *,
        watched: bool = False,
    ) -> None:
        self._make = make
        self._peer: PrefillPeer | DecodePeer | None = make()
        self._kinds = ("kv", *kinds)
        self.rows = rows
        self.page_size = page_size
        self.held = Held()
        self.behind = Behind()
        self.watch = Watch() if watched else None
        self.pages: Any = None
        """What writes whole pages by the engine's own way (`sglang_slices`), where it can."""

    @property
    def telemetry(self) -> Telemetry | None:
        """The peer's."""
        return self._peer.telemetry if self._peer is not None else None

    def expect(self, room: int) -> SendHandle | None:
        """Prefill: decode ranks may ask for this room. None while there is no peer.

        Raises what the peer raises, once decode is to hear of it: it would wait for a room that never opens.
        """
        peer = self._peer
        if not isinstance(peer, PrefillPeer):
            return None
        try:
            return peer.open(room)
        except Exception as defect:
            peer.refuse(room, "PD3140", f"{type(defect).__name__}: {defect}")
            raise

    def ask(
        self, room: int, registry: tuple[str, int], ids: Mapping[str, NDArray[np.int64]], prefix: int
    ) -> ReceiveHandle:
        """Decode: have a room written into these items, `prefix` tokens of which are here. TransferError PD3140.

        Raises what the peer raises, once prefill is to hear of it: it would wait for ids that never come.
        """
        if not isinstance(self._peer, DecodePeer):
            raise TransferError("the engine has given its memory back", code="PD3140")
        pages, rest = divmod(prefix, self.page_size)
        if rest:
            raise TransferError(f"a prefix of {prefix} tokens ends within a page of {self.page_size}", code="PD3140")
        try:
            handle = self._peer.open(room, registry, ids, skip={"kv": pages} if pages else None)  # type: ignore[arg-type]
        except Exception as defect:
            self._peer.refuse(room, registry, "PD3140", f"{type(defect).__name__}: {defect}")
            raise
        self.held.hold(room, handle)
        return handle

    def ids(self, pages: Any, states: Sequence[Any] | None) -> dict[str, NDArray[np.int64]]:
        """Ids by kind: pages of KV, and a list for each kind of state that has one. They are copied."""
        found = {"kv": _ids(pages)}
        for kind, one in zip(self._kinds[1:], states or (), strict=False):
            if one is not None:
                found[kind] = _ids(one)
        return found

    def pause(self) -> None:
        """The engine is about to give its memory back."""
        peer, self._peer = self._peer, None
        if peer is not None and not peer.close():
            log.warning("pdctl plugin: PD4034: memory is given back while a transfer may still touch it")

    def resume(self) -> None:
        """It has it again."""
        if self._peer is None:
            self._peer = self._make()


def _ids(values: Any) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64).reshape(-1)


class Manager(EngineManager):
    """SGLang's manager with a core in it, once one was attached."""

    core: CoreRank | None = None
    ways: Ways | None = None

    def is_abort_release_safe(self, bootstrap_room: int, required_acks: int) -> bool:
        """Asked of a failed request's pages: by the core's own proof where the core wrote them."""
        if self.core is not None and self.core.held.knows(bootstrap_room):
            return self.core.held.free(bootstrap_room)
        return super().is_abort_release_safe(bootstrap_room, required_acks)

    def clear_deferred_abort_state(self, bootstrap_room: int) -> None:
        """The pages are given back."""
        if self.core is not None:
            self.core.held.let_go(bootstrap_room)
        super().clear_deferred_abort_state(bootstrap_room)

    def _handle_node_failure(self, failed_bootstrap_addr: str) -> None:
        super()._handle_node_failure(failed_bootstrap_addr)
        if self.ways is not None:
            self.ways.forget(failed_bootstrap_addr)

    def register_buffer_to_engine(self) -> None:
        """At the start, and when the engine has its memory again."""
        super().register_buffer_to_engine()
        if self.core is not None:
            self.core.resume()

    def deregister_buffer_to_engine(self) -> None:
        """Before the engine gives its memory back."""
        if self.core is not None:
            self.core.pause()
        super().deregister_buffer_to_engine()
