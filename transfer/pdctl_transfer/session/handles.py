"""The handles by which an engine follows and steers its requests. They hold callables, and know no peer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.errors import TransferError
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.life import Handle

METADATA_BYTES: Final = 16 << 20


class SendHandle(Handle):
    """A room on the sending side."""

    def __init__(
        self,
        room: int,
        abort: Callable[["SendHandle", Failure], object],
        send: Callable[["SendHandle", dict[str, NDArray[np.int64]], bytes], object],
    ) -> None:
        super().__init__(room, lambda failure: abort(self, failure), "prefill")
        self._send = send

    def send(self, indices: Mapping[str, Sequence[int]], metadata: bytes = b"") -> None:
        """The room's state is in place: write the items with these ids, one list a kind, then deliver `metadata`.

        Every kind of the rank's stage needs its list; an empty one moves nothing. The items must stay as they are until
        `reusable`. Call it once; a second call is ignored. TransferError where the metadata is over METADATA_BYTES.
        """
        if len(metadata) > METADATA_BYTES:
            raise TransferError(f"{len(metadata)} bytes of metadata, the limit is {METADATA_BYTES}")
        self._send(self, ids_of(indices), bytes(metadata))


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
