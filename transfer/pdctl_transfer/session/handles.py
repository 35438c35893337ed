"""The handles by which an engine follows and steers its requests. They hold callables, and know no peer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.life import Handle

METADATA_BYTES: Final = 16 << 20


class Sent(Struct, frozen=True):
    """What an engine gave to `send`."""

    indices: dict[str, NDArray[np.int64]]
    last: bool = True
    skipped: dict[str, int] = {}


class SendHandle(Handle):
    """A room on the sending side."""

    def __init__(
        self,
        room: int,
        abort: Callable[["SendHandle", Failure], object],
        send: Callable[[Sent, bytes], object],
    ) -> None:
        super().__init__(room, lambda failure: abort(self, failure), "prefill")
        self._send = send
        self.skip: Mapping[str, int] = {}
        """Of each kind, how many of the first items decode holds already; known once the room is waiting."""

    def send(
        self,
        indices: Mapping[str, Sequence[int]],
        metadata: bytes = b"",
        *,
        last: bool = True,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        """The room's state is in place: write the items with these ids, one list a kind, then deliver `metadata`.

        Every kind of the rank's stage needs its list; an empty one moves nothing. The items must stay as they are until
        `reusable`. It may come in installments: all but the last with `last=False`, each with the ids that follow those
        before; kinds may be left out until the last, and it alone has metadata. What comes after the last is ignored.

        skipped: of each kind, how many items the lists leave out at the beginning, because decode holds them (`skip`);
        items that decode holds and that are not left out are passed over. TransferError where the metadata is over
        METADATA_BYTES, or comes before the last installment.
        """
        if len(metadata) > METADATA_BYTES:
            raise TransferError(f"{len(metadata)} bytes of metadata, the limit is {METADATA_BYTES}")
        if metadata and not last:
            raise TransferError("metadata goes with the last installment")
        self._send(Sent(ids_of(indices), last, dict(skipped or {})), bytes(metadata))


class ReceiveHandle(Handle):
    """A request on the receiving side."""

    def __init__(self, room: int, abort: Callable[["ReceiveHandle", Failure], object]) -> None:
        super().__init__(room, lambda failure: abort(self, failure), "decode")
        self.delivered = b""
        """What prefill sent along, perhaps before all is in place."""

    @property
    def metadata(self) -> bytes:
        """What prefill sent along; complete once confirmed, empty before."""
        return self.delivered if self.state == "confirmed" else b""


def ids_of(indices: Mapping[str, Sequence[int]]) -> dict[str, NDArray[np.int64]]:
    """Id lists as arrays of shape [n]."""
    return {kind: np.array(values, dtype=np.int64).reshape(-1) for kind, values in indices.items()}
