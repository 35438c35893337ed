"""Registry, handshake and the life of a request on both sides."""

from pdctl_transfer.region import Region
from pdctl_transfer.session.decode import DecodePeer
from pdctl_transfer.session.failure import Failure, Side, State
from pdctl_transfer.session.handles import ReceiveHandle, SendHandle
from pdctl_transfer.session.options import Options, Rank
from pdctl_transfer.session.prefill import PrefillPeer
from pdctl_transfer.session.registry import Registry

__all__ = [
    "DecodePeer",
    "Failure",
    "Options",
    "PrefillPeer",
    "Rank",
    "ReceiveHandle",
    "Region",
    "Registry",
    "SendHandle",
    "Side",
    "State",
]
