"""vLLM's `--kv-transfer-config` as a tree: connectors that wrap others, and among those the one that moves P to D.

What moves the state between the engines is judged; what offloads or stores beside it is carried and named. Read in vLLM
0.32.0 (`kv_connector/factory.py`, `v1/multi_connector.py`) and in Dynamo, whose PdConnector is a MultiConnector.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

#: `moves`: from engine to engine. `wraps`: others. `stores`: for itself. `shares`: in a store of several engines.
Does = Literal["moves", "wraps", "stores", "shares", "unknown"]
DEPTH: Final = 4


class Kind(Struct, frozen=True):
    """What a connector does, its backend where it moves, and whether it knows hybrid caches (`SupportsHMA`).

    `since`, `until`: the releases of vLLM that register it themselves, as far as they were read.
    """

    does: Does
    backend: str = ""
    hybrid: bool = True
    since: str | None = None
    until: str | None = None


#: The oldest release that was read: what it registers no more.
GONE: Final = "0.24.0"

#: Connectors by class. vllm-ascend's are named as it registers them.
KNOWN: Final[Mapping[str, Kind]] = {
    "NixlConnector": Kind("moves", "nixl"),
    "NixlPullConnector": Kind("moves", "nixl"),
    "NixlPushConnector": Kind("moves", "nixl"),
    "MooncakeConnector": Kind("moves", "mooncake"),
    "MooncakeConnectorV1": Kind("moves", "mooncake"),
    "MooncakeLayerwiseConnector": Kind("moves", "mooncake"),
    "MooncakeHybridConnector": Kind("moves", "mooncake"),
    "MoRIIOConnector": Kind("moves", "mori"),
    "P2pNcclConnector": Kind("moves", "nccl", hybrid=False, until=GONE),
    "PdctlConnector": Kind("moves", "pdctl"),
    "LMCacheConnectorV1": Kind("shares", "lmcache", hybrid=False),
    "LMCacheMPConnector": Kind("shares", "lmcache", hybrid=False),
    "MultiConnector": Kind("wraps"),
    "PdConnector": Kind("wraps"),
    "OffloadingConnector": Kind("stores"),
    "SimpleCPUOffloadConnector": Kind("stores"),
    "HiSparseConnector": Kind("stores", since="0.30.0"),
    "DecodeBenchConnector": Kind("stores"),
    "DynamoConnector": Kind("stores", hybrid=False),
    "ExampleHiddenStatesConnector": Kind("stores"),
    "MooncakeStoreConnector": Kind("shares", "mooncake store"),
    "AscendStoreConnector": Kind("shares", "mooncake store", hybrid=False),
    "MooncakeConnectorStoreV1": Kind("shares", "mooncake store", hybrid=False),
    "ExampleConnector": Kind("shares", "shared files", hybrid=False),
    "SharedStorageConnector": Kind("shares", "shared files", hybrid=False, until=GONE),
    "HF3FSKVConnector": Kind("shares", "3FS", hybrid=False),
    "FlexKVConnectorV1": Kind("shares", "FlexKV", hybrid=False),
    "UMBPStoreConnector": Kind("shares", "UMBP"),
}

#: Options of the NIXL connectors that their handshake knows, by pdctl's name.
HASHED: Final[Mapping[str, str]] = {
    "enable_cross_layers_blocks": "cross-layers",
    "enforce_handshake_compat": "compat-hash",
}

#: Backends of the connectors that move state between engines, and LMCache.
BACKENDS: Final = (*dict.fromkeys(kind.backend for kind in KNOWN.values() if kind.does == "moves"), "lmcache")


class Connector(Struct, frozen=True):
    """One connector of a tree: its class, the role that its own part of the config gives it, what it wraps.

    `options`: its extra config. `module`: where its class is, for one that is not the engine's own.
    """

    name: str
    role: str | None = None
    children: "tuple[Connector, ...]" = ()
    options: Mapping[str, Any] = {}
    module: str | None = None

    @property
    def kind(self) -> Kind:
        """What pdctl knows of its class; one that wraps others does, whatever it is called."""
        return KNOWN.get(self.name) or Kind("wraps" if self.children else "unknown", self.name)

    @property
    def label(self) -> str:
        """`MultiConnector[NixlConnector, OffloadingConnector]`."""
        return f"{self.name}[{', '.join(child.label for child in self.children)}]" if self.children else self.name

    @property
    def hybrid(self) -> bool:
        """Whether it and all that it wraps know hybrid caches; vLLM turns its hybrid manager off if one does not."""
        return self.kind.hybrid and all(child.hybrid for child in self.children)

    def all(self) -> "Iterator[Connector]":
        """Itself and all below it."""
        yield self
        for child in self.children:
            yield from child.all()

    def leaves(self) -> "Iterator[Connector]":
        """The connectors that do something themselves, in their order."""
        return (one for one in self.all() if one.kind.does != "wraps")


def read(config: Mapping[str, Any], role: str | None = None, depth: int = 0) -> Connector | None:
    """The tree of a transfer config; None where it names no connector. A child without a role has its parent's."""
    name = config.get("kv_connector")
    if not isinstance(name, str) or not name or depth > DEPTH:
        return None
    said = config.get("kv_role")
    role = said if isinstance(said, str) else role
    extra = config.get("kv_connector_extra_config")
    inner = extra.get("connectors") if isinstance(extra, Mapping) else None
    parts = inner if isinstance(inner, list) else []
    found = (read(part, role, depth + 1) for part in parts if isinstance(part, Mapping))
    module = config.get("kv_connector_module_path")
    return Connector(
        name,
        role,
        tuple(child for child in found if child is not None),
        extra if isinstance(extra, Mapping) else {},
        module if isinstance(module, str) else None,
    )


def mover(tree: Connector) -> Connector | None:
    """What brings the state from prefill to decode: the first that moves it, else one that pdctl does not know, else a
    store that several engines share. None where each engine only keeps things for itself."""
    for does in ("moves", "unknown", "shares"):
        for leaf in tree.leaves():
            if leaf.kind.does == does:
                return leaf
    return None


def extras(config: Mapping[str, Any], depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """`kv_connector_extra_config` of each connector of the tree that moves state, or, being unknown, may."""
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, Mapping) else {}
    kind = KNOWN.get(str(config.get("kv_connector")))
    if kind is None or kind.does == "moves":
        yield extra
    inner = extra.get("connectors")
    for part in inner if isinstance(inner, list) and depth < DEPTH else ():
        if isinstance(part, Mapping):
            yield from extras(part, depth + 1)
