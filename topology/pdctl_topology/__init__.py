"""What the machines of a fleet are: HCAs, ports, GIDs, GPUs, NUMA. Knows no engine."""

from .choice import Assignment, Choice, Excluded, Pick, Usable, choose
from .gids import GidChoice, choose_gid
from .host import read_host
from .integrated import integrated
from .model import Gid, Gpu, Hca, Host, Netdev, Numa, Port
from .outputs import Setting, device_map, settings
from .pci import Distance, distance
from .tree import Capture, CaptureTree, FolderTree, Tree

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "Capture",
    "CaptureTree",
    "Choice",
    "Distance",
    "Excluded",
    "FolderTree",
    "Gid",
    "GidChoice",
    "Gpu",
    "Hca",
    "Host",
    "Netdev",
    "Numa",
    "Pick",
    "Port",
    "Setting",
    "Tree",
    "Usable",
    "choose",
    "choose_gid",
    "device_map",
    "distance",
    "integrated",
    "read_host",
    "settings",
]
