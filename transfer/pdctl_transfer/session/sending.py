"""A room on the sending side: its handle, the decode ranks that asked for it, and what is missing where it fails."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.leg import Leg, Sent
from pdctl_transfer.session.life import Failure, Handle
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.timers import Timer

if TYPE_CHECKING:
    from pdctl_transfer.session.prefill import PrefillPeer


METADATA_BYTES: Final = 16 << 20


class SendHandle(Handle):
    """A room on the sending side."""

    def __init__(self, peer: "PrefillPeer", room: int) -> None:
        super().__init__(room, lambda failure: peer.loop.call(peer.fail_room, self, failure), "prefill")
        self._peer = peer

    def send(self, indices: Mapping[str, Sequence[int]], metadata: bytes = b"") -> None:
        """The room's state is in place: write the items with these ids, one list a kind, then deliver `metadata`.

        The items must stay as they are until `reusable`. Call it once; a second call is ignored. TransferError where
        the metadata is over METADATA_BYTES.
        """
        if len(metadata) > METADATA_BYTES:
            raise TransferError(f"{len(metadata)} bytes of metadata, the limit is {METADATA_BYTES}")
        ids = {kind: np.asarray(values, dtype=np.int64).reshape(-1) for kind, values in indices.items()}
        self._peer.loop.call(self._peer.send_room, self, Sent(ids, bytes(metadata)))


class Room:
    """One request on the sending side; `handle` is None while only decode has spoken of it."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.handle: SendHandle | None = None
        self.legs: dict[RankId, Leg] = {}
        self.expected: tuple[RankId, ...] | None = None
        self.dp = 0
        self.sent: Sent | None = None
        self.timer: Timer | None = None

    @property
    def complete(self) -> bool:
        """Whether every decode rank that this rank feeds has asked."""
        return self.expected is not None and all(rank in self.legs for rank in self.expected)

    @property
    def confirmed(self) -> bool:
        """Every decode rank has seen all of it."""
        return self.complete and all(leg.confirmed for leg in self.legs.values())

    @property
    def free(self) -> bool:
        """Nothing reads its items any more, or whoever was written to is gone."""
        return all(leg.settled or (leg.link.channel.over and not leg.jobs) for leg in self.legs.values())

    def unasked(self, options: Options) -> Failure:
        """Why it fails if decode ranks do not ask in time."""
        asked = f"only {', '.join(str(tuple(rank)) for rank in self.legs)}" if self.legs else "no decode rank"
        return Failure("PD4032", f"room {self.room}: {asked} asked for it in {options.bootstrap_s:g} s", "decode")

    def unsent(self, options: Options) -> Failure:
        """Why it fails if the engine does not send in time."""
        cause = f"room {self.room}: the prefill engine sent nothing in {options.waiting_s:g} s"
        return Failure("PD4030", cause, "prefill")

    def unwritten(self, options: Options) -> Failure:
        """Why it fails if no thread comes to write it in time."""
        cause = f"room {self.room}: no write began in {options.waiting_s:g} s after it was sent"
        return Failure("PD4031", cause, "prefill")

    def unconfirmed(self, options: Options) -> Failure:
        """Why it fails if it is not confirmed in time."""
        left = ", ".join(str(tuple(rank)) for rank, leg in self.legs.items() if not leg.confirmed)
        cause = f"room {self.room}: not confirmed by decode {left} in {options.transfer_s:g} s"
        return Failure("PD4031", cause, "decode")
