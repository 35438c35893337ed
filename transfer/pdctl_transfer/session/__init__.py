"""Registry, handshake and the life of a request on both sides."""

from pdctl_transfer.session.decode import DecodePeer
from pdctl_transfer.session.life import Failure, Side, State
from pdctl_transfer.session.options import Options, Rank, Region
from pdctl_transfer.session.prefill import PrefillPeer
from pdctl_transfer.session.receiving import ReceiveHandle
from pdctl_transfer.session.registry import Registry
from pdctl_transfer.session.sending import SendHandle

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
